#!/bin/sh
# A long job in pieces of two hours, each of which goes on where the one before has stopped:
#
#     sbatch chained.sh ./program ARGUMENT...
#
# Ten minutes before the end of a piece Slurm sends SIGUSR1 to this script, which passes it on to `radic run`: that suspends the job and ends with
# code 114. Then the script has Slurm queue it again. Any other code is the end of the chain. Change the lines of #SBATCH, and -n, to your needs: the nodes
# are those of the ranks and one spare, and the time before the end is what it takes to write all ranks to the folder, with some to spare.
#
#SBATCH --nodes=5 --ntasks-per-node=1 --no-kill
#SBATCH --time=2:00:00 --signal=B:USR1@600
#SBATCH --requeue --open-mode=append

# Where the suspended job is between two pieces: a folder that every node can reach, and with room for two suspensions of it.
state=$SLURM_SUBMIT_DIR/radic-$SLURM_JOB_ID
# What is suspended is signed with the cluster's key, so all pieces need the same one.
key=$HOME/.radic/chained.key
# Local, fresh for each piece, and under a name that nobody knows before: others may write to /tmp.
RADIC_CLUSTER=$(mktemp -d "${TMPDIR:-/tmp}/radic-$SLURM_JOB_ID-XXXXXXXXXX") || exit
export RADIC_CLUSTER

[ -f "$key" ] || { mkdir -p -m 700 "$HOME/.radic" && radic key "$key"; } || exit
# The other nodes find the key by the home folder, if they share it. Where they do not, add --send-key below if the network is trusted, or name a cluster folder
# that is on each node already, with the key in it.
cp -p "$key" "$RADIC_CLUSTER/key" || exit
radic cluster start --slurm --spares 1 || exit

# If a piece is lost as a whole (all its nodes, or a time that was too short to suspend it) the next one does not begin: what the lost piece has done
# would be done again. Where that does no harm, add --resume-again.
radic run -n 4 --resume-from "$state" --suspend-to "$state" -- "$@" &
run=$!
trap 'again=yes; kill -USR1 $run' USR1
# The signal ends the first wait, not the run.
again=yes
while [ "$again" ]; do
    again=
    wait $run
    code=$?
done

radic cluster stop
rm -rf "$RADIC_CLUSTER"
[ $code != 0 ] || rm -rf "$state"
[ $code != 114 ] || scontrol requeue "$SLURM_JOB_ID"
exit $code
