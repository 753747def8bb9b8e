#!/bin/sh
# make demo: a local cluster, and a real MPI program under it. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/target/release:$PATH
RADIC_CLUSTER=$(mktemp -d)/cluster
export PATH RADIC_CLUSTER
finish() {
    radic cluster stop >/dev/null 2>&1 || true
    rm -rf "$(dirname "$RADIC_CLUSTER")"
}
trap finish EXIT
trap 'exit 130' INT TERM

step() { printf '\n$ %s\n' "$*"; "$@"; }

step radic cluster start --nodes 4 --spares 1
step radic nodes
step radic run -n 4 --label -- .deps/programs/mpich/jacobi --size 800 --iterations 400

printf '\nA node dies under a job that is not protected, so the job ends, and says why:\n'
printf '\n$ radic run --detach --protect none -n 4 -- .deps/programs/mpich/ring --laps 100000000\n'
job=$(radic run --detach --protect none -n 4 -- .deps/programs/mpich/ring --laps 100000000)
echo "$job"
step radic inject kill-node n3
code=0
step radic attach "$job" || code=$?
echo "exit code $code"
[ "$code" = 113 ] || { echo "demo: the exit code should be 113" >&2; exit 1; }
step radic nodes
echo
echo OK
