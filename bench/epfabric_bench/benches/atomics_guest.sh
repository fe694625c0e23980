# In the VM, for atomics.py: rounds of ours and of perftest's, in turn, on the first rail.
# PROGRAM ROUNDS trips=N; RAILS is the script that lays the rails out.
. "$(dirname "$0")/perftest.sh"
program=$1 rounds=$2 trips=${3#trips=}

peers() { peer ib_atomic_lat 8 "$1" -A FETCH_AND_ADD -n "$trips"; }

ours() { timeout 240 "$program" verbs=1 first="$1" rounds=1 trips="$trips" || exit 1; }

for round in $(seq 0 $((rounds - 1))); do
  if [ $((round % 2)) = 0 ]; then ours "$round"; peers "$round"; else peers "$round"; ours "$round"; fi
done
