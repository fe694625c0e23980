# In the VM, for verbs.py: rounds of ours and of perftest's, in turn, on the first rail.
# PROGRAM ROUNDS trips=N writes=N; RAILS is the script that lays the rails out.
. "$(dirname "$0")/perftest.sh"
program=$1 rounds=$2 trips=${3#trips=} writes=${4#writes=}

peers() {
  peer ib_write_lat 8 "$1" -s 8 -n "$trips"
  peer ib_write_lat 7168 "$1" -s 7168 -n "$trips"
  peer ib_write_bw 8 "$1" -s 8 -n "$writes" -t 128 -Q 1
}

ours() { timeout 240 "$program" first="$1" rounds=1 trips="$trips" writes="$writes" || exit 1; }

for round in $(seq 0 $((rounds - 1))); do
  if [ $((round % 2)) = 0 ]; then ours "$round"; peers "$round"; else peers "$round"; ours "$round"; fi
done
