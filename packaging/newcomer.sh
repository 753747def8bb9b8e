#!/bin/bash
# What packaging/test.sh does within a second clean root: a newcomer's first minute. Nothing is there but the package and what apt has brought with it; /root holds the package.
set -euo pipefail
fail() { echo "newcomer: $*"; cat /tmp/screen 2>/dev/null || true; exit 1; }
until_shown() { # until_shown TEXT: on the terminal of `script`
    local _
    for _ in $(seq 100); do if grep -qF -- "$1" /tmp/screen 2>/dev/null; then return 0; fi; sleep 0.1; done
    fail "$1 is not on the terminal within 10 s"
}

! command -v man >/dev/null || fail "man was there before"
apt-get update -q >/tmp/update 2>&1 || { cat /tmp/update; exit 1; }
apt-get install -y -q /root/radic_*.deb >/tmp/install 2>&1 || { cat /tmp/install; exit 1; }
useradd --create-home --shell /bin/bash alice
[ -e ~alice/.bashrc ] || fail "a new user has no .bashrc"

su - alice -c 'man -P cat radic' | grep 'cluster start' >/dev/null || fail "man radic shows nothing"

# In a terminal, with an interactive shell, as a user would: what Tab makes of "radic clu", and then of its subcommand.
mkfifo /tmp/keys
su - alice -c "env TERM=xterm PS1='ready> ' script -qfec 'bash -i' /tmp/typescript" </tmp/keys >/tmp/screen 2>&1 &
terminal=$!
exec 3>/tmp/keys
until_shown '$ '
printf 'radic clu\t' >&3
until_shown 'radic cluster '
printf 'sta\t--nodes 3; echo it "is" up\r' >&3
until_shown 'radic cluster start --nodes 3'
until_shown 'it is up'
# The screen of top, and the key that leaves it.
printf 'radic top\r' >&3
# Between its words the cursor is moved.
until_shown '(first)'
until_shown 'q quit  Enter ranks'
printf 'q' >&3
until_shown $'\033[?1049l'
printf 'echo it "is" left; radic cluster stop; exit\r' >&3
until_shown 'it is left'
wait "$terminal" || fail "the shell ended with $?"
exec 3>&-
if pgrep -u alice >/dev/null 2>&1; then fail "alice has processes left"; fi
echo "newcomer: man, Tab and top work"
