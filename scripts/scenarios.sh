#!/usr/bin/env bash
# Runs scenarios, one after the other: `scenarios.sh FOLDER NAME...`. Ranks of MPI programs poll: two scenarios at once need longer than one after the other. Their output goes
# to FOLDER/NAME.log. A scenario that passes prints a line for each of its tests; the log of one that fails is shown, and no other one is begun.
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"
run() {
    local log=$1/$2.log begun=$SECONDS
    if ! $CARGO test --profile tests --workspace --test "$2" -- --test-threads=1 --nocapture >"$log" 2>&1; then
        cat "$log"
        echo "scenario $2 failed after $((SECONDS - begun)) s"
        exit 1
    fi
    grep -oE '^test [a-z_0-9:]+ \.\.\.|^test result.*' "$log" | sed -E 's/^test ([a-z_0-9:]+) \.\.\./  \1/' || true
    echo "scenario $2 passed in $((SECONDS - begun)) s"
}
CARGO=${CARGO:-cargo}
$CARGO test --quiet --profile tests --workspace --no-run
for name in "$@"; do
    run "$folder" "$name"
done
