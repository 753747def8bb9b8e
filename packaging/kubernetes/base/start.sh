#!/bin/sh
# What a pod runs: radicd, under the name of the pod and at the address that this pod has now.
#
# The StatefulSet says POD_NAME, POD_IP, POD_KEY (the Secret's file) and where RADIC_CLUSTER and RADIC_STORE are; the ConfigMap says RADIC_JOIN, SPARES_FROM
# and whatever else radicd is to be told by a RADIC_* variable.
set -eu
umask 077
# What the libraries of ranks had in shared memory when this container's radicd before was killed: the keeper that removes it was killed with the container.
[ $$ != 1 ] || find /dev/shm -mindepth 1 -delete
# radicd takes no key that others may read, and Kubernetes mounts that of a Secret as root's, for a group.
mkdir -p "$RADIC_CLUSTER"
install -m 600 "$POD_KEY" "$RADIC_CLUSTER/key"
number=${POD_NAME##*-}
if [ "$number" = 0 ]; then
    # The first pod founds the cluster, and knows by its name in the list that it is the first. The name service learns of a pod a moment after the pod has begun.
    seconds=60
    until getent ahosts "${RADIC_JOIN%%[:,]*}" | grep -q "^$POD_IP " || [ $seconds = 0 ]; do
        sleep 1
        seconds=$((seconds - 1))
    done
fi
# A pod whose machine has died comes back as a spare: one of those has its ranks.
role=--rejoin-as-spare
[ "$number" -lt "$SPARES_FROM" ] || role=--spare
# In this shell's place: SIGTERM is for radicd.
exec radicd --name "$POD_NAME" --listen "$POD_IP" "$role"
