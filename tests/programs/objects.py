"""mpi4py with Python objects and with buffers: every rank checks what it gets, rank 0 prints one line: objects.py [ROUNDS]."""

import hashlib
import sys
from array import array

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def thing(round_, who):
    """An object whose pickled size varies."""
    words = [f"{round_}.{who}.{i}" for i in range(round_ * 7 % 400)]
    return {"round": round_, "from": who, "words": words, "number": round_ * 1.5 + who}


def check(found, due, what):
    if found != due:
        print(f"rank {rank}: {what}: {found!r} instead of {due!r}", file=sys.stderr, flush=True)
        comm.Abort(1)


def one_round(number, digest):
    right, left = (rank + 1) % size, (rank - 1) % size
    request = comm.isend(thing(number, rank), dest=right, tag=number)
    check(comm.recv(source=left, tag=number), thing(number, left), "recv")
    request.wait()
    root = number % size
    check(comm.bcast(thing(number, rank) if rank == root else None, root=root), thing(number, root), "bcast")
    everything = comm.gather(thing(number, rank), root=root)
    if rank == root:
        check(everything, [thing(number, who) for who in range(size)], "gather")
    check(comm.allreduce(rank + number), size * (size - 1) // 2 + size * number, "allreduce")
    numbers = array("q", range(rank, rank + 3000))
    sums = array("q", bytes(8 * 3000))
    comm.Allreduce(numbers, sums)
    check(sums[2999], sum(who + 2999 for who in range(size)), "Allreduce")
    digest.update(repr((number, sums[number], everything and everything[-1]["words"])).encode())


rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 300
digest = hashlib.sha256()
for number in range(rounds):
    one_round(number, digest)
digests = comm.gather(digest.hexdigest())
if rank == 0:
    print("OK objects", size, "ranks", rounds, "rounds", hashlib.sha256("".join(digests).encode()).hexdigest(), flush=True)
