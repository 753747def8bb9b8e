/* A ring of ranks that receive so many megabytes in a second, each, for so long: what comes is added to a part of each rank's memory, and that part is what leaves next. A step
 * that is late is followed by the next one at once, so the time of the whole is --seconds unless the ranks cannot keep up. Rank 0 prints the longest step, too.
 */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "check.h"

int main(int argc, char **argv)
{
    struct option options[] = {{"mib", 250, 1}, {"rate", 200, 1}, {"seconds", 10, 1}, {"json", 0, FLAG}};
    start(argc, argv, options, 4, 2);
    const size_t piece = 4 << 20, words = piece / sizeof(uint64_t), pieces = ((size_t)options[0].value << 20) / piece + 1;
    const double period = (double)piece / ((double)options[1].value * 1e6);
    const long steps = (long)((double)options[2].value / period) + 1;
    uint64_t *state = allocate(pieces * piece), *got = allocate(piece);
    for (size_t i = 0; i < pieces * words; i++)
        state[i] = mix((uint64_t)rank << 40 ^ i);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begun = MPI_Wtime();
    double longest = 0;
    for (long i = 0; i < steps; i++) {
        const double early = begun + (double)i * period - MPI_Wtime();
        if (early > 0)
            nanosleep(&(struct timespec){(time_t)early, (long)((early - (double)(time_t)early) * 1e9)}, NULL);
        uint64_t *part = state + (size_t)i % pieces * words;
        const double before = MPI_Wtime();
        MPI_Sendrecv(part, (int)piece, MPI_BYTE, (rank + 1) % size, 1, got, (int)piece, MPI_BYTE, (rank + size - 1) % size, 1,
                     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        const double took = MPI_Wtime() - before;
        longest = took > longest ? took : longest;
        for (size_t w = 0; w < words; w++)
            part[w] = part[w] * 3 + got[w];
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const double seconds = MPI_Wtime() - begun;
    uint64_t mine = 0, sum;
    for (size_t i = 0; i < pieces * words; i++)
        mine += mix(state[i] ^ i);
    MPI_Reduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    double slowest;
    MPI_Reduce(&longest, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && options[3].value)
        printf("{\"steps\":%ld,\"seconds\":%.6f,\"longest_step_ms\":%.3f}\n", steps, seconds, slowest * 1e3);
    if (rank == 0)
        printf("OK steady %d ranks %ld steps checksum %016llx\n", size, steps, (unsigned long long)sum);
    free(state);
    free(got);
    MPI_Finalize();
    return 0;
}
