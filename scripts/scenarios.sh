#!/usr/bin/env bash
# Runs scenarios: `scenarios.sh FOLDER "ALONE..." "OTHERS..."`, the first ones one after the other, because they measure times, the others two at once, because they mostly
# wait. Their output goes to FOLDER/NAME.log. A scenario that passes prints a line for each of its tests; the log of one that fails is shown, and no other one is begun.
set -euo pipefail
folder=$1
mkdir -p "$folder"
run() {
    local log=$1/$2.log begun=$SECONDS
    # 255 ends xargs.
    if ! $CARGO test --profile tests --workspace --test "$2" -- --test-threads=1 --nocapture >"$log" 2>&1; then
        cat "$log"
        echo "scenario $2 failed after $((SECONDS - begun)) s"
        exit 255
    fi
    grep -oE '^test [a-z_0-9:]+ \.\.\.|^test result.*' "$log" | sed -E 's/^test ([a-z_0-9:]+) \.\.\./  \1/' || true
    echo "scenario $2 passed in $((SECONDS - begun)) s"
}
export -f run
export CARGO=${CARGO:-cargo}
$CARGO test --profile tests --workspace --no-run
for at_once in 1 2; do
    [ $at_once = 1 ] && names=$2 || names=$3
    xargs -rn 1 <<<"$names" | xargs -P $at_once -I{} bash -c 'run "$@"' _ "$folder" {}
done
