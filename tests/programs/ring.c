/* A message goes round the ring; every rank checks it, adds its own mark and passes it on. */
#include "check.h"

int main(int argc, char **argv)
{
    struct option options[] = {{"laps", 500, 1}, {"bytes", 4096, 1}};
    start(argc, argv, options, 2, 2);
    const long laps = options[0].value, bytes = options[1].value;
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    unsigned char *message = allocate((size_t)bytes);

    for (long lap = 0; lap < laps; lap++) {
        const uint64_t seed = (uint64_t)(lap * size);
        if (rank == 0) {
            fill(message, (size_t)bytes, seed);
            MPI_Send(message, (int)bytes, MPI_BYTE, next, 1, MPI_COMM_WORLD);
        }
        MPI_Status status;
        int received;
        MPI_Recv(message, (int)bytes, MPI_BYTE, previous, 1, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &received);
        CHECK(received == bytes, "lap %ld: %d bytes instead of %ld", lap, received, bytes);
        check_filled(message, (size_t)bytes, seed + (uint64_t)(rank == 0 ? size : rank) - 1, "message");
        if (rank != 0) {
            fill(message, (size_t)bytes, seed + (uint64_t)rank);
            MPI_Send(message, (int)bytes, MPI_BYTE, next, 1, MPI_COMM_WORLD);
        }
    }
    free(message);
    if (rank == 0)
        printf("OK ring %d ranks %ld laps %ld bytes\n", size, laps, bytes);
    MPI_Finalize();
    return 0;
}
