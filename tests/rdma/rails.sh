# Sourced in the VM: two rails, each a veth pair with a soft-RoCE device at both ends: ra0 10.9.0.1
# and rb0 10.9.0.2; ra1 10.9.1.1 and rb1 10.9.1.2. All are in one network namespace, yet packets
# cross the pairs: soft RoCE of Linux 6.1 knows the first namespace only.
set -e
for conf in all default; do
  echo 1 > /proc/sys/net/ipv4/conf/$conf/accept_local
  echo 0 > /proc/sys/net/ipv4/conf/$conf/rp_filter
done
ip rule add pref 100 lookup local
ip rule del pref 0 lookup local
for rail in 0 1; do
  ip link add va$rail type veth peer name vb$rail
  for end in a b; do
    case $end in a) own=1 other=2 ;; b) own=2 other=1 ;; esac
    dev=v$end$rail table=$((100 + 2 * rail + own))
    ip addr add 10.9.$rail.$own/24 dev $dev
    ip link set $dev mtu 4200 up
    echo 1 > /proc/sys/net/ipv4/conf/$dev/accept_local
    echo 0 > /proc/sys/net/ipv4/conf/$dev/rp_filter
    ip rule add pref $((10 + 2 * rail + own)) from 10.9.$rail.$own to 10.9.$rail.$other iif lo \
      lookup $table
  done
  ip route add 10.9.$rail.2 dev va$rail src 10.9.$rail.1 table $((101 + 2 * rail))
  ip route add 10.9.$rail.1 dev vb$rail src 10.9.$rail.2 table $((102 + 2 * rail))
  for end in a b; do rdma link add r$end$rail type rxe netdev v$end$rail; done
done
for device in ra0 rb0 ra1 rb1; do
  for look in $(seq 100); do
    grep -qs 'ffff:0a09' /sys/class/infiniband/$device/ports/1/gids/* && break
    [ "$look" != 100 ] || { echo "$device has no GID of its address" >&2; exit 1; }
    sleep 0.1
  done
done
set +e
