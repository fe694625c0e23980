# Sourced in the VM by the guest scripts here: lays out the rails of $RAILS; runs a program of perftest.
. "$RAILS"
port=18600

index() { # of the device's GID with its IPv4 address
  grep -l 'ffff:0a09' /sys/class/infiniband/"$1"/ports/1/gids/* | head -1 | xargs basename
}

peer() { # PROGRAM BYTES ROUND option…
  local what=$1 bytes=$2 round=$3 said look
  shift 3
  port=$((port + 1))
  timeout 120 taskset -c 1 "$what" -d rb0 -x "$(index rb0)" -F -p $port "$@" > /dev/null 2>&1 &
  for look in $(seq 100); do
    if said=$(timeout 120 taskset -c 0 "$what" -d ra0 -x "$(index ra0)" -F -p $port "$@" 10.9.0.2 2>&1); then
      printf 'PEER %s %s %s\n%s\n' "$what" "$bytes" "$round" "$said"
      wait $!
      return
    fi
    sleep 0.1
  done
  echo "$what failed: $said"
  exit 1
}
