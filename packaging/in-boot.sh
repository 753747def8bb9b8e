#!/bin/bash
# What packaging/test.sh does under a systemd of its own: the unit as it is, and three nodes of one user under the same restrictions.
set -euo pipefail
exec >/root/said 2>&1
result() { echo "$?" >/root/code; systemctl poweroff --force --force; }
trap result EXIT
fail() { echo "in-boot: $*"; journalctl -b --no-pager -n 60 || true; exit 1; }
as_alice() { su - alice -c "$*"; }
until_true() { local i; for i in $(seq 100); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.2; done; fail "$* did not succeed within 20 s"; }
nodes() { [ "$(as_alice radic nodes --json | grep -c '"state": "alive"')" = "$1" ]; }

apt-get install -y -q --no-install-recommends /root/radic_*.deb >/tmp/install || fail "not installed: $(cat /tmp/install)"
useradd --create-home alice
as_alice 'mkdir -p -m 700 .radic/cluster && radic key .radic/cluster/key'

# One node, by the unit and the package's settings.
echo RADIC_LISTEN=127.0.0.1:7117 >/etc/radic/alice.env
systemctl start radicd@alice || fail "the unit does not start"
until_true nodes 1
[ "$(stat -c '%U %a' /var/lib/radic/alice)" = "alice 700" ] || fail "the store is not alice's"
[ "$(as_alice radic run -n 1 -- cat /proc/self/comm)" = cat ] || fail "no job runs"
systemctl stop radicd@alice
[ "$(systemctl show -P Result radicd@alice)" = success ] || fail "it did not stop cleanly"

# The cluster of the site: the account that the package has made, with a key in its home.
as_radic() { su -s /bin/bash - radic -c "$*"; }
as_radic radic key .radic/cluster/key
echo RADIC_LISTEN=127.0.0.1:7117 >/etc/radic/radic.env
systemctl start radicd@radic || fail "radicd@radic does not start"
is_up() { as_radic radic nodes --json | grep '"state": "alive"'; }
until_true is_up
[ "$(as_radic radic run -n 2 -- id -un | sort -u)" = radic ] || fail "no job runs as radic"
if as_alice RADIC_CLUSTER=/var/lib/radic/radic/.radic/cluster radic nodes; then fail "alice may look at the site's cluster"; fi
systemctl stop radicd@radic
[ "$(systemctl show -P Result radicd@radic)" = success ] || fail "radicd@radic did not stop cleanly"

# Three nodes of the same user, under what the unit restricts: a rank is restored there.
sed 's/^User=%i/User=alice/' /lib/systemd/system/radicd@.service >/etc/systemd/system/radicd-try@.service
systemctl daemon-reload
join=
for i in 1 2 3; do
    printf 'RADIC_NAME=n%s\nRADIC_LISTEN=127.0.0.%s:7117\n%s\n' "$i" "$i" "$join" >"/etc/radic/n$i.env"
    systemctl start "radicd-try@n$i" || fail "n$i does not start"
    until_true nodes "$i"
    join=RADIC_JOIN=127.0.0.1:7117
done
# Each rank prints its process id by the system call, every half second.
ids='$|=1; for (1..12) { print syscall(39), "\n"; select(undef, undef, undef, 0.5) }'
printf '%s\n' "$ids" >/tmp/ids
# shellcheck disable=SC2016 # $job is her shell's.
as_alice 'set -e; radic run -n 3 --label --ckpt-interval 0.2 -- perl /tmp/ids >/tmp/out & job=$!; sleep 2; radic inject kill-node n2; wait $job' || fail "the job did not survive"
as_alice radic events --json | grep '"event":"live"' >/dev/null || fail "no rank was brought back: $(as_alice radic events)"
[ "$(wc -l </tmp/out)" = 36 ] || fail "lines are lost: $(cat /tmp/out)"
# With its old ids, by way of namespaces of its own: what the unit leaves on for it.
[ "$(sort -u /tmp/out | wc -l)" = 3 ] || fail "a rank came back under other ids: $(sort /tmp/out | uniq -c)"
echo "in-boot: the unit works"
