/* Sorts numbers of all ranks by samples: each rank sorts its own, all agree on splitters, and everything goes to the rank of its range. */
#include "check.h"

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void sort(uint64_t *keys, long n)
{
    qsort(keys, (size_t)n, sizeof *keys, by_value);
}

/* What is to be the same before and after: the sum, and the sum of each mixed. */
static void sums(const uint64_t *keys, long n, uint64_t *out)
{
    uint64_t mine[3] = {(uint64_t)n, 0, 0};
    for (long i = 0; i < n; i++) {
        mine[1] += keys[i];
        mine[2] += mix(keys[i]);
    }
    MPI_Allreduce(mine, out, 3, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

/* The least key of each rank but the first. */
static void agree(const uint64_t *keys, long n, uint64_t *splitters)
{
    uint64_t *samples = allocate((size_t)size * sizeof *samples), *all = allocate((size_t)size * (size_t)size * sizeof *all);
    for (int r = 0; r < size; r++)
        samples[r] = keys[n * r / size];
    MPI_Allgather(samples, size, MPI_UINT64_T, all, size, MPI_UINT64_T, MPI_COMM_WORLD);
    sort(all, (long)size * size);
    for (int r = 1; r < size; r++)
        splitters[r - 1] = all[r * size];
    free(all);
    free(samples);
}

/* How many keys go to each rank, and where they begin. */
static void divide(const uint64_t *keys, long n, const uint64_t *splitters, int *counts, int *begins)
{
    long at = 0;
    for (int r = 0; r < size; r++) {
        begins[r] = (int)at;
        while (at < n && (r == size - 1 || keys[at] < splitters[r]))
            at++;
        counts[r] = (int)at - begins[r];
    }
}

static void check_order(const uint64_t *keys, long n, long round)
{
    for (long i = 1; i < n; i++)
        CHECK(keys[i - 1] <= keys[i], "round %ld: key %ld is out of order", round, i);
    const uint64_t ends[2] = {n > 0 ? keys[0] : UINT64_MAX, n > 0 ? keys[n - 1] : 0};
    uint64_t *all = allocate((size_t)size * sizeof ends);
    MPI_Allgather(ends, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, MPI_COMM_WORLD);
    uint64_t most = 0;
    for (int r = 0; r < size; r++) {
        const int is_empty = all[2 * r] > all[2 * r + 1];
        CHECK(is_empty || all[2 * r] >= most, "round %ld: rank %d begins below what is before it", round, r);
        most = is_empty ? most : all[2 * r + 1];
    }
    free(all);
}

static void round_of(long n, long round)
{
    uint64_t *keys = allocate((size_t)n * sizeof *keys), *splitters = allocate((size_t)size * sizeof *splitters);
    for (long i = 0; i < n; i++)
        keys[i] = mix(((uint64_t)round << 44) ^ ((uint64_t)rank << 32) ^ (uint64_t)i);
    uint64_t before[3], after[3];
    sums(keys, n, before);
    sort(keys, n);
    agree(keys, n, splitters);
    int *table = allocate(4 * (size_t)size * sizeof *table);
    int *counts = table, *begins = table + size, *come = table + 2 * size, *at = table + 3 * size;
    divide(keys, n, splitters, counts, begins);
    MPI_Alltoall(counts, 1, MPI_INT, come, 1, MPI_INT, MPI_COMM_WORLD);
    long total = 0;
    for (int r = 0; r < size; r++) {
        at[r] = (int)total;
        total += come[r];
    }
    uint64_t *sorted = allocate((size_t)total * sizeof *sorted);
    MPI_Alltoallv(keys, counts, begins, MPI_UINT64_T, sorted, come, at, MPI_UINT64_T, MPI_COMM_WORLD);
    sort(sorted, total);
    check_order(sorted, total, round);
    sums(sorted, total, after);
    CHECK(memcmp(before, after, sizeof before) == 0, "round %ld: not the same keys", round);
    free(sorted);
    free(table);
    free(splitters);
    free(keys);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"keys", 200000, 16}, {"rounds", 10, 1}, {"json", 0, FLAG}};
    start(argc, argv, options, 3, 1);
    const long keys = options[0].value, rounds = options[1].value;
    CHECK(keys <= 1 << 26, "--keys is at most 67108864 for each rank");
    MPI_Barrier(MPI_COMM_WORLD);
    const double before = MPI_Wtime();
    for (long round = 0; round < rounds; round++)
        round_of(keys, round);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        if (options[2].value)
            printf("{\"keys\":%ld,\"rounds\":%ld,\"seconds\":%.6f}\n", keys, rounds, MPI_Wtime() - before);
        printf("OK samplesort %d ranks %ld keys %ld rounds\n", size, keys, rounds);
    }
    MPI_Finalize();
    return 0;
}
