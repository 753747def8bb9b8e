#!/bin/sh
# Readiness: this pod is a member of the cluster, on the side that has the majority. A pod that joins, or whose side is frozen, says so and is not ready.
status=$(radic status --json) || exit 1
case $status in
*'"frozen": true'*)
    echo "frozen: this side of the cluster has no majority" >&2
    exit 1
    ;;
esac
