#!/bin/bash
# What packaging/test.sh does within a clean root: /root holds the package.
set -euo pipefail
fail() { echo "in-root: $*"; exit 1; }

find / -xdev \( -path /proc -o -path /dev -o -path /root -o -path /tmp -o -path /run \) -prune -o -print | sort >/tmp/before
apt-get install -y -q --no-install-recommends /root/radic_*.deb >/tmp/install 2>&1 || { cat /tmp/install; exit 1; }
man -w radic radic-run radic-cluster-start radic-ckpt-save >/dev/null
man -w 8 radicd >/dev/null
man -P cat radic-explain | grep EXAMPLES >/dev/null || fail "the manual page has no examples"
radic --version && radicd --version
for name in radic radicd; do
    [ "$(readlink -f "/usr/bin/$name")" = "/usr/lib/radic/$name" ] || fail "/usr/bin/$name leads elsewhere"
done

[ "$(getent passwd radic | cut -d: -f6,7)" = /var/lib/radic/radic:/usr/sbin/nologin ] || fail "the account radic is not there, or another one: $(getent passwd radic)"
getent shadow radic | grep '^radic:[!*]' >/dev/null || fail "the account radic is not locked"
[ "$(stat -c '%U %a' /var/lib/radic /var/lib/radic/radic/.radic/cluster | tr '\n' ' ')" = "root 755 radic 700 " ] || fail "the home of radic is not its own"

useradd --create-home alice
cat >/tmp/as-alice <<'END'
set -euo pipefail
radic cluster start --nodes 3 --spares 1
[ "$(radic run -n 3 -- cat /proc/self/comm | sort -u)" = cat ]
radic run -n 3 --ckpt-interval 0.2 -- sleep 4 &
job=$!
sleep 1.5
radic inject kill-node n2
wait "$job"
radic events --json | grep '"event":"live"' >/dev/null
radic top --once | grep 'nodes alive' >/dev/null
number=$(radic events --json | sed -n 's/.*"event":"live".*"job":"\([0-9a-f]*\)".*/\1/p' | head -n 1)
radic report "$number" | grep 'n2 died' >/dev/null
radic report "$number" --html report.html && grep '<svg ' report.html >/dev/null
# What Tab completes, in the shell of a user who has done nothing for it.
( . /usr/share/bash-completion/completions/radic; COMP_WORDS=(radic rep) COMP_CWORD=1; _radic radic rep radic; [[ " ${COMPREPLY[*]} " = *" report "* ]] )
radic run -n 1 -- sh -c 'exit 42' && exit 1 || [ $? = 42 ]
radic explain 42
radic cluster stop
END
su - alice -c "bash /tmp/as-alice"
if pgrep -u alice >/dev/null; then fail "alice has processes left: $(pgrep -u alice -a)"; fi
# The key that the unit's daemon would have; the file that the package brings is usable as it is.
su - alice -c 'radicd --config /etc/radic/radicd.toml --listen 127.0.0.1:7117 --check-config >/dev/null'
userdel -r alice 2>/dev/null

apt-get remove -y -q radic >/tmp/remove 2>&1
[ -e /etc/radic/radicd.toml ] || fail "apt remove took the settings away"
[ -d /var/lib/radic/radic ] || fail "apt remove took the home of the account radic away"
# Over what is left; then all of it goes.
apt-get install -y -q --no-install-recommends /root/radic_*.deb >/tmp/install 2>&1 || { cat /tmp/install; exit 1; }
apt-get purge -y -q radic >/tmp/purge 2>&1
getent passwd radic >/dev/null || fail "the account is gone, and files that its jobs have left would belong to whoever comes next"
# Of what is new, what dpkg, apt and man keep for themselves is left out, and users' files in /etc, which useradd keeps copies of.
find / -xdev \( -path /proc -o -path /dev -o -path /root -o -path /tmp -o -path /run -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log \
    -o -path /var/lib/systemd \) -prune -o -print | sort >/tmp/after
left=$(comm -13 /tmp/before /tmp/after | grep -v '^/etc/\(passwd\|group\|shadow\|gshadow\|subuid\|subgid\)-\?$' || true)
[ -z "$left" ] || fail "this is left: $left"
echo "in-root: installed, run, removed; nothing is left"
