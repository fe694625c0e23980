# In the VM, for verbs_barrier.py: rounds of barriers and of perftest's writes, in turn, on the first
# rail. PROGRAM ROUNDS TRIPS; RAILS is the script that lays the rails out.
. "$(dirname "$0")/perftest.sh"
program=$1 rounds=$2 trips=$3

peers() { peer ib_write_lat 8 "$1" -s 8 -n "$trips"; }

ours() { timeout 240 "$program" what=3 first="$1" rounds=1 trips="$trips" || exit 1; }

for round in $(seq 0 $((rounds - 1))); do
  if [ $((round % 2)) = 0 ]; then ours "$round"; peers "$round"; else peers "$round"; ours "$round"; fi
done
