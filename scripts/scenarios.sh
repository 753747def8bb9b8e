#!/usr/bin/env bash
# Runs scenarios, one after the other: `scenarios.sh FOLDER NAME...`. Ranks of MPI programs poll: two scenarios at once need longer than one after the other. Their output goes
# to FOLDER/NAME.log. A scenario that passes prints a line for each of its tests; the log of one that fails is shown, and no other one is begun.
#
# With RADIC_DRAW=1, of the scenarios that take longest every second test is drawn: RADIC_SEED says which, and is printed. So a change meets half of them when it lands, and all of
# them within a few landings. Without it, and with RADIC_LONG=1, all run.
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"
CARGO=${CARGO:-cargo}
long=" faults matrix networks pieces protect protect_net protect_replay recover recover_links recover_many recover_moments recover_redis restart suspend threads web "
draws() {
    [ "${RADIC_DRAW:-}" = 1 ] && [ "${RADIC_LONG:-}" != 1 ] && [[ $long == *" $1 "* ]]
}
scenario() {
    $CARGO test --profile tests --workspace --test "$1" -- --test-threads=1 "${@:2}"
}
# A test is drawn by the parity of a checksum of its name and the seed.
drawn() {
    local name sum
    $CARGO test --quiet --profile tests --workspace --test "$1" -- --list | sed -n 's/: test$//p' | while read -r name; do
        sum=$(printf '%s' "$seed $name" | cksum)
        [ $((${sum%% *} % 2)) = 0 ] && echo "$name"
    done
    true
}
run() {
    local log=$folder/$1.log begun=$SECONDS tests=()
    if draws "$1"; then
        mapfile -t tests < <(drawn "$1")
        [ ${#tests[@]} -gt 0 ] && tests=(--exact "${tests[@]}")
    fi
    if ! scenario "$1" --nocapture "${tests[@]}" >"$log" 2>&1; then
        cat "$log"
        echo "scenario $1 failed after $((SECONDS - begun)) s${tests:+, with RADIC_DRAW=1 RADIC_SEED=$seed}"
        exit 1
    fi
    grep -oE '^test [a-z_0-9:]+ \.\.\.|^test result.*' "$log" | sed -E 's/^test ([a-z_0-9:]+) \.\.\./  \1/' || true
    echo "scenario $1 passed in $((SECONDS - begun)) s"
}
seed=${RADIC_SEED:-$(date +%s%N)}
[ "${RADIC_DRAW:-}" = 1 ] && echo "RADIC_SEED=$seed draws the same tests"
$CARGO test --quiet --profile tests --workspace --no-run
for name in "$@"; do
    run "$name"
done
