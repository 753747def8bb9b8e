#!/bin/sh
# Before a pod is told to end: waits until no rank of any job is on its way back, or without a checkpoint at its protector. Machines are often drained one
# after the other, and such a rank has nothing to go on from if the next machine is the wrong one. `timeout` bounds it, in the StatefulSet.
#
# A pod that is no member, or whose radicd has ended, has nothing to wait for.
while status=$(radic status --json); do
    case $status in
    *'"degraded": true'*) sleep 1 ;;
    *) exit 0 ;;
    esac
done
