#!/usr/bin/env bash
# Runs scenarios: `scenarios.sh FOLDER NAME...`. Those that mostly wait run first, some at once. The others run one after the other: ranks of MPI programs poll, and two
# such scenarios at once need longer than one after the other. Their output goes to FOLDER/NAME.log. A scenario that passes prints a line for each of its tests; the log of one
# that fails is shown, and no other one is begun.
#
# With RADIC_DRAW=1, of the scenarios that take longest every fourth test is drawn: RADIC_SEED says which, and is printed. So a change meets a quarter of them when it lands, and all
# of them within some landings. Without it, and with RADIC_LONG=1, all run.
set -euo pipefail
export folder=$1
shift
mkdir -p "$folder"
export CARGO=${CARGO:-cargo}
export long=" causal death faults folders hostile input kubernetes matrix networks pieces protect protect_net protect_replay recover recover_cut recover_links \
recover_many recover_moments recover_redis recover_together restart ring run slurm ssh suspend threads web "
# Those that take longest first.
waiting=" packages gridengine input death folders output config show schedulers "
AT_ONCE=3
draws() {
    [ "${RADIC_DRAW:-}" = 1 ] && [ "${RADIC_LONG:-}" != 1 ] && [[ $long == *" $1 "* ]]
}
# Each is run as Cargo runs it, but not by Cargo, which looks each time at whether anything is to be compiled: a minute for all.
scenario() {
    (cd tests && "$(grep "/$1-[0-9a-f]*$" "$folder/programs")" --test-threads=1 "${@:2}")
}
listed() {
    scenario "$@" --list 2>/dev/null | sed -n 's/: test$//p'
}
# A quarter of the tests, and at least one: those first in the order of a checksum of their names and the seed, which also says how the quarter is rounded.
drawn() {
    local names name sum more
    names=$(listed "$1" | grep -vxFf <(listed "$1" --ignored))
    sum=$(printf '%s' "$seed $1" | cksum)
    more=$((${sum%% *} % 4))
    while read -r name; do
        printf '%s %s\n' "$(printf '%s' "$seed $name" | cksum)" "$name"
    done <<<"$names" | sort -n | awk -v more="$more" '{ name[NR] = $3 } END { some = int((NR + more) / 4); for (i = 1; i <= (some ? some : 1); i++) print name[i] }'
}
run() {
    local log=$folder/$1.log begun=$SECONDS tests=() shown
    if draws "$1"; then
        mapfile -t tests < <(drawn "$1")
        # Nothing drawn would be nothing tried.
        if [ -z "${tests[*]}" ]; then
            echo "scenario $1 failed: none of its tests could be drawn"
            exit 255
        fi
        tests=(--exact "${tests[@]}")
    fi
    if ! scenario "$1" --nocapture "${tests[@]}" >"$log" 2>&1; then
        cat "$log"
        echo "scenario $1 failed after $((SECONDS - begun)) s, with RADIC_DRAW=${RADIC_DRAW:-0} RADIC_SEED=$seed"
        exit 255 # xargs begins no other one then.
    fi
    shown=$(grep -oE '^test [a-z_0-9:]+ \.\.\.|^test result.*' "$log" | sed -E 's/^test ([a-z_0-9:]+) \.\.\./  \1/' || true)
    # At once: the lines of others that run beside it are not in between.
    printf '%s\nscenario %s passed in %s s\n' "$shown" "$1" $((SECONDS - begun))
}
export seed=${RADIC_SEED:-$(date +%s%N)}
export -f draws scenario listed drawn run
[ "${RADIC_DRAW:-}" = 1 ] && echo "RADIC_SEED=$seed draws the same tests"
folder=$(realpath "$folder")
# With the same compiler as `make compile` ($LINTS), or all would be compiled once more.
# shellcheck disable=SC2086 # Words, on purpose.
env ${LINTS:-} "$CARGO" test --quiet --profile tests --workspace --all-targets --no-run --message-format=json-render-diagnostics |
    sed -n '/#radic-tests@/s/.*"executable":"\([^"]*\)".*/\1/p' >"$folder/programs"
first=()
alone=()
for name in $waiting; do
    [[ " $* " == *" $name "* ]] && first+=("$name")
done
for name in "$@"; do
    if [[ $waiting == *" $name "* ]]; then continue; fi
    alone+=("$name")
done
printf '%s\n' "${first[@]}" | xargs -r -P "$AT_ONCE" -I NAME bash -c 'set -euo pipefail; run NAME'
for name in "${alone[@]}"; do
    run "$name"
done
