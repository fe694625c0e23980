# In the VM, for verbs.py: rounds of ours and of perftest's, in turn, on the first rail.
# PROGRAM ROUNDS trips=N writes=N; RAILS is the script that lays the rails out.
. "$RAILS"
program=$1 rounds=$2 trips=${3#trips=} writes=${4#writes=}
port=18600

index() { # of the device's GID with its IPv4 address
  grep -l 'ffff:0a09' /sys/class/infiniband/"$1"/ports/1/gids/* | head -1 | xargs basename
}

peer() { # PROGRAM BYTES ROUND option…
  local what=$1 bytes=$2 round=$3 said look
  shift 3
  port=$((port + 1))
  timeout 120 taskset -c 1 "$what" -d rb0 -x "$(index rb0)" -F -s "$bytes" -p $port "$@" > /dev/null 2>&1 &
  for look in $(seq 100); do
    if said=$(timeout 120 taskset -c 0 "$what" -d ra0 -x "$(index ra0)" -F -s "$bytes" -p $port "$@" 10.9.0.2 2>&1); then
      printf 'PEER %s %s %s\n%s\n' "$what" "$bytes" "$round" "$said"
      wait $!
      return
    fi
    sleep 0.1
  done
  echo "$what failed: $said"
  exit 1
}

peers() {
  peer ib_write_lat 8 "$1" -n "$trips"
  peer ib_write_lat 7168 "$1" -n "$trips"
  peer ib_write_bw 8 "$1" -n "$writes" -t 128 -Q 1
}

ours() { timeout 240 "$program" first="$1" rounds=1 trips="$trips" writes="$writes" || exit 1; }

for round in $(seq 0 $((rounds - 1))); do
  if [ $((round % 2)) = 0 ]; then ours "$round"; peers "$round"; else peers "$round"; ours "$round"; fi
done
