#!/bin/sh
# One check under libFuzzer, for `make fuzz`: FOLDER SECONDS NAME LONGEST. Says one line, or the end of the log and fails.
set -eu
folder=$1 seconds=$2 name=$3 longest=$4
log=$folder/log.$name
mkdir -p "$folder/corpus/$name"
RADIC_FUZZ=$name "$folder/x86_64-unknown-linux-gnu/release/fuzz" -max_total_time="$seconds" -max_len="$longest" -rss_limit_mb=2048 \
    -timeout=10 -print_final_stats=1 -artifact_prefix="$folder/$name-" "$folder/corpus/$name" "$folder/first/$name" >"$log" 2>&1 || {
    tail -40 "$log"
    echo "fuzz: $name FAILED; the input is in $folder, and RADIC_FUZZ=$name $folder/x86_64-unknown-linux-gnu/release/fuzz INPUT repeats it"
    exit 255 # xargs stops at it.
}
awk -v name="$name" '
    { for (i = 1; i < NF; i++) { if ($i == "cov:") cover = $(i + 1); if ($i == "corp:") corpus = $(i + 1) } }
    $1 == "stat::number_of_executed_units:" { runs = $2 }
    $1 == "stat::peak_rss_mb:" { memory = $2 }
    END { printf "fuzz: %-10s %9d inputs tried, %5d places reached, %s kept, %d MiB\n", name, runs, cover, corpus, memory }' "$log"
