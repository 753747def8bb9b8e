#!/bin/sh
# make demo: a solver on four nodes, one of which dies in mid-run; the job goes on and has the right result. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
PATH=${CARGO_TARGET_DIR:-$PWD/target}/release:$PATH
work=$(mktemp -d)
RADIC_CLUSTER=$work/cluster
export PATH RADIC_CLUSTER
finish() {
    radic cluster stop >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '\n%s\n' "$*"; }
step() { printf '\n$ %s\n' "$*"; "$@"; }
fail() { printf '\ndemo: %s\n' "$*" >&2; exit 1; }

victim=n3
solver='.deps/programs/mpich/jacobi --size 1600 --iterations 1500 --progress 100 --alone 0'

step radic cluster start --nodes 4 --spares 1

say 'First undisturbed: Jacobi iterations on a square, four ranks on four nodes, MPICH 5, nothing about RADIC in the program.'
printf '\n$ radic run -n 4 -- %s\n' "$solver"
# shellcheck disable=SC2086 # Words, on purpose.
radic run -n 4 -- $solver >"$work/undisturbed" || fail 'the undisturbed run failed'
tail -n 3 "$work/undisturbed"

say "Now the same, and node $victim dies on the way, with every process on it:"
printf '\n$ radic run -n 4 --ckpt-interval 1 -- %s\n' "$solver"
# shellcheck disable=SC2086
{ radic run -n 4 --ckpt-interval 1 -- $solver || echo $? >"$work/code"; } | tee "$work/disturbed" | while IFS= read -r line; do
    printf '%s\n' "$line"
    case $line in
    'iteration 700 '*) step radic inject kill-node "$victim" || echo "kill-node failed" >"$work/code"; echo ;;
    esac
done
[ ! -e "$work/code" ] || fail "the job ended with exit code $(cat "$work/code")"

# Its last events come when it is protected again: those are on record when the job has ended.
radic events --json >"$work/events"
say 'What happened (radic events):'
scripts/account.py "$victim" "$work/events" || fail 'the account is not complete'
step radic nodes
step radic spare list

cmp -s "$work/undisturbed" "$work/disturbed" || { diff "$work/undisturbed" "$work/disturbed" || true; fail 'the output differs'; }
say "Every line of output is the same as in the undisturbed run, and none came twice: $(tail -n 1 "$work/disturbed")"
say OK
