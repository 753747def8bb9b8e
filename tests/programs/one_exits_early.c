/* The last rank is done early: it finalizes and exits while the others go on working among themselves. */
#include "check.h"

static void work(MPI_Comm comm, long rounds)
{
    int me, all;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &all);
    unsigned char out[2048], in[2048];
    for (long round = 0; round < rounds; round++) {
        const int to = (me + 1) % all, from = (me + all - 1) % all;
        fill(out, sizeof out, mix((uint64_t)round) ^ (uint64_t)me);
        MPI_Sendrecv(out, sizeof out, MPI_BYTE, to, 1, in, sizeof in, MPI_BYTE, from, 1, comm, MPI_STATUS_IGNORE);
        check_filled(in, sizeof in, mix((uint64_t)round) ^ (uint64_t)from, "message");
        long mine = round * (me + 1), sum;
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, comm);
        CHECK(sum == round * all * (all + 1) / 2, "round %ld: sum %ld", round, sum);
    }
}

int main(int argc, char **argv)
{
    struct option options[] = {{"rounds", 1000, 1}};
    start(argc, argv, options, 1, 2);
    const long rounds = options[0].value;
    const int leaves = rank == size - 1;
    MPI_Comm comm;
    MPI_Comm_split(MPI_COMM_WORLD, leaves, rank, &comm);
    work(MPI_COMM_WORLD, rounds / 10 + 1);
    if (!leaves)
        work(comm, rounds);
    MPI_Comm_free(&comm);
    if (rank == 0)
        printf("OK one_exits_early %d ranks %ld rounds\n", size, rounds);
    MPI_Finalize();
    return 0;
}
