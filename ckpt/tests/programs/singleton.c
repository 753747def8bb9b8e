/* An MPI program without a launcher: sends to itself, collectives on one rank, a window. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 20000, ROUNDS = 5500 };

int main(int count, char **arguments) {
    static uint64_t out[WORDS], in[WORDS], all[WORDS];
    int size;
    uint64_t hash = 1, sum = 0, *window;
    MPI_Win win;
    MPI_Request requests[2];
    MPI_Init(&count, &arguments);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 1) return 2;
    MPI_Win_allocate(4096, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &win);
    memset(window, 0, 4096);
    printf("ready\n");
    fflush(stdout);
    for (int round = 0; round < ROUNDS; round++) {
        int words = round % 2 ? WORDS : 7;
        for (int i = 0; i < words; i++) out[i] = hash = hash * 6364136223846793005ULL + i;
        for (int i = 0; i < 300000; i++) hash = hash * 31 + i;
        MPI_Irecv(in, words, MPI_UINT64_T, 0, round, MPI_COMM_WORLD, &requests[0]);
        MPI_Isend(out, words, MPI_UINT64_T, 0, round, MPI_COMM_WORLD, &requests[1]);
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        if (memcmp(in, out, words * 8)) return 3;
        MPI_Allreduce(in, all, words, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
        MPI_Bcast(all, words, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        MPI_Win_fence(0, win);
        MPI_Accumulate(&all[3], 1, MPI_UINT64_T, 0, round % 512, 1, MPI_UINT64_T, MPI_SUM, win);
        MPI_Win_fence(0, win);
        MPI_Barrier(MPI_COMM_WORLD);
        sum = sum * 31 + all[words - 1] + window[round % 512];
    }
    printf("%lu\n", sum);
    MPI_Win_free(&win);
    MPI_Finalize();
    return 0;
}
