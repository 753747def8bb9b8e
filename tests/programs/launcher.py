"""What MPI asks the launcher for while it runs: launcher.py WHAT [ROUNDS]. Rank 0 prints OK at the end.

names    a port is published by one rank, looked up by the others, and taken back; a name that is not there is an error
connect  the ranks of one half accept the other half, which finds the port by its name
groups   a session, and communicators from its groups: of all ranks, and of every second one. MPI_Init is called, too, for MPI_Finalize waits for all ranks: where MPI_Session_finalize is the
         last call, Open MPI 5.0.11 over TCP takes a rank that has gone for a fault ("Socket closed"; by its own mpirun in 28 of 60 runs)
windows  one-sided calls, and a split by shared memory, in which each rank is alone
spawn    MPI_Comm_spawn is an error
"""
import sys
import time

from mpi4py import MPI

WHAT = sys.argv[1]
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else 1


def look_up(name):
    """The port of this name. MPI does not say whether looking up waits for it."""
    for _ in range(1000):
        try:
            return MPI.Lookup_name(name)
        except MPI.Exception:
            time.sleep(0.01)
    raise SystemExit(f"{name} is not published")


def fails(call, *args):
    try:
        call(*args)
    except MPI.Exception:
        return True
    return False


def names(world, turn):
    rank, size = world.rank, world.size
    speaker = turn % size
    service, port = f"service-{turn}", f"port-{turn}-of-rank-{speaker}"
    if rank == speaker:
        MPI.Publish_name(service, port)
        assert fails(MPI.Publish_name, service, "another")
    assert look_up(service) == port
    world.Barrier()
    if rank == speaker:
        MPI.Unpublish_name(service, port)
    world.Barrier()
    assert fails(MPI.Lookup_name, service), f"{service} is still there"
    world.Barrier()


def connect(world, turn):
    half = world.Split(world.rank % 2, world.rank)
    service = f"half-{turn}"
    if world.rank % 2 == 0:
        port = MPI.Open_port() if half.rank == 0 else ""
        if half.rank == 0:
            MPI.Publish_name(service, port)
        other = half.Accept(port)
    else:
        port = look_up(service) if half.rank == 0 else ""
        other = half.Connect(port)
    assert other.remote_size == world.size - half.size
    theirs = other.alltoall([(world.rank, to) for to in range(other.remote_size)])
    assert [to for _, to in theirs] == [half.rank] * other.remote_size
    assert all(rank % 2 != world.rank % 2 for rank, _ in theirs)
    both = other.Merge(high=world.rank % 2 == 1)
    assert both.allreduce(1) == world.size
    both.Free()
    other.Disconnect()
    if half.rank == 0 and world.rank % 2 == 0:
        MPI.Unpublish_name(service, port)
        MPI.Close_port(port)
    half.Free()


def groups(everybody, turn):
    rank, size = everybody.rank, everybody.size
    world = MPI.Intracomm.Create_from_group(everybody, f"all {turn}")
    assert world.allreduce(rank) == size * (size - 1) // 2
    mine = everybody.Incl(range(rank % 2, size, 2))
    some = MPI.Intracomm.Create_from_group(mine, f"some {turn}")
    assert some.allreduce(rank) == sum(range(rank % 2, size, 2))
    world.Barrier()
    some.Free()
    world.Free()
    mine.Free()


def windows(world, turn):
    rank, size = world.rank, world.size
    window = MPI.Win.Allocate(8 * size, 8, comm=world)
    view = memoryview(window).cast("q")
    window.Fence()
    window.Put([(turn * size + rank).to_bytes(8, "little"), MPI.BYTE], (rank + 1) % size, [rank, 8, MPI.BYTE])
    window.Fence()
    left = (rank - 1) % size
    assert view[left] == turn * size + left
    view.release()
    window.Free()
    near = world.Split_type(MPI.COMM_TYPE_SHARED)
    assert near.size == 1, f"{near.size} ranks share memory"
    near.Free()


def spawn(world, _turn):
    world.Barrier()
    assert fails(lambda: MPI.COMM_SELF.Spawn(sys.executable, ["-c", "pass"]))
    world.Barrier()


if WHAT == "groups":
    session = MPI.Session.Init()
    everybody = session.Create_group("mpi://WORLD")
    rank = everybody.rank
    for turn in range(ROUNDS):
        groups(everybody, turn)
    everybody.Free()
    session.Finalize()
else:
    rank = MPI.COMM_WORLD.rank
    for turn in range(ROUNDS):
        {"names": names, "connect": connect, "windows": windows, "spawn": spawn}[WHAT](MPI.COMM_WORLD, turn)
if rank == 0:
    print(f"OK launcher {WHAT} {ROUNDS} rounds", flush=True)
