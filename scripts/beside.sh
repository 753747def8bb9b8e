#!/usr/bin/env bash
# Two commands at once: `beside.sh LOG COMPUTES WAITS`. The first one computes, with what the second one leaves of the processors; the second one mostly waits, and its
# output is shown. What the first one prints goes to the file LOG, and is shown at the end. Fails if one of them does; if the second one does, the first one is ended.
set -euo pipefail
log=$1 computes=$2 waits=$3
mkdir -p "$(dirname "$log")"
# A session of its own, which the scheduler counts as one group: that has the lowest priority, too.
setsid bash -c 'echo 19 >/proc/self/autogroup || true; exec nice -n 19 bash -c "$1"' _ "$computes" >"$log" 2>&1 &
pid=$!
trap 'kill -TERM "$pid" "-$pid" 2>/dev/null || true; cat "$log"' EXIT
bash -c "$waits"
wait "$pid"
