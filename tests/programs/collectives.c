/* Broadcast, all-reduce and all-to-all with changing roots and lengths; every rank checks everything it gets. */
#include "check.h"

static uint64_t value(long round, int from, int to, long at)
{
    return mix(((uint64_t)round << 40) ^ ((uint64_t)from << 30) ^ ((uint64_t)to << 20) ^ (uint64_t)at) >> 8; /* sums do not overflow */
}

static void check_bcast(long round, long words, uint64_t *buffer)
{
    const int root = (int)(round % size);
    for (long i = 0; i < words; i++)
        buffer[i] = rank == root ? value(round, root, 0, i) : 0;
    MPI_Bcast(buffer, (int)words, MPI_UINT64_T, root, MPI_COMM_WORLD);
    for (long i = 0; i < words; i++)
        CHECK(buffer[i] == value(round, root, 0, i), "round %ld: bcast from %d: word %ld is wrong", round, root, i);
}

static void check_allreduce(long round, long words, uint64_t *mine, uint64_t *sum)
{
    for (long i = 0; i < words; i++)
        mine[i] = value(round, rank, 1, i);
    MPI_Allreduce(mine, sum, (int)words, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (long i = 0; i < words; i++) {
        uint64_t expected = 0;
        for (int r = 0; r < size; r++)
            expected += value(round, r, 1, i);
        CHECK(sum[i] == expected, "round %ld: allreduce: word %ld is wrong", round, i);
    }
}

static void check_alltoall(long round, long words, uint64_t *mine, uint64_t *theirs)
{
    for (int r = 0; r < size; r++)
        for (long i = 0; i < words; i++)
            mine[r * words + i] = value(round, rank, r, i);
    MPI_Alltoall(mine, (int)words, MPI_UINT64_T, theirs, (int)words, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        for (long i = 0; i < words; i++)
            CHECK(theirs[r * words + i] == value(round, r, rank, i), "round %ld: alltoall from %d: word %ld is wrong", round, r, i);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"rounds", 60, 1}, {"words", 8192, 1}};
    start(argc, argv, options, 2, 1);
    const long rounds = options[0].value, most = options[1].value;
    uint64_t *a = allocate((size_t)most * (size_t)size * sizeof *a), *b = allocate((size_t)most * (size_t)size * sizeof *b);
    for (long round = 0; round < rounds; round++) {
        const long words = 1 + (long)(mix((uint64_t)round) % (uint64_t)most);
        check_bcast(round, words, a);
        check_allreduce(round, words, a, b);
        check_alltoall(round, words, a, b);
    }
    free(a);
    free(b);
    if (rank == 0)
        printf("OK collectives %d ranks %ld rounds\n", size, rounds);
    MPI_Finalize();
    return 0;
}
