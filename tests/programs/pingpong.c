/* Ranks 0 and 1 exchange messages of 8 B to 8 MiB, check them, and report half the median round trip. Other ranks wait. */
#include "check.h"

enum { LEAST = 8, MOST = 8 << 20 };

static long default_count(long bytes)
{
    return bytes <= 4 << 10 ? 200 : bytes <= 64 << 10 ? 100 : bytes <= 1 << 20 ? 20 : 5;
}

/* One exchange: rank 0 sends buffer and gets it back. */
static void exchange(unsigned char *buffer, long bytes)
{
    if (rank == 0)
        MPI_Send(buffer, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    MPI_Recv(buffer, (int)bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1)
        MPI_Send(buffer, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
}

/* The whole content is checked in the first exchange and after the last; in between, each message has its number in front, and at
 * its end what it was filled with. */
static void measure(unsigned char *buffer, double *times, long bytes, long count, int json)
{
    memset(buffer, rank, (size_t)bytes);
    if (rank == 0)
        fill(buffer, (size_t)bytes, (uint64_t)bytes);
    exchange(buffer, bytes);
    check_filled(buffer, (size_t)bytes, (uint64_t)bytes, "first message");
    const unsigned char last = buffer[bytes - 1];
    for (long i = 0; i < count; i++) {
        const double before = MPI_Wtime();
        if (rank == 0)
            memcpy(buffer, &i, sizeof i);
        exchange(buffer, bytes);
        times[i] = MPI_Wtime() - before;
        long stamp;
        memcpy(&stamp, buffer, sizeof stamp);
        CHECK(stamp == i && (bytes == LEAST || buffer[bytes - 1] == last), "message %ld of %ld bytes is %ld", i, bytes, stamp);
    }
    const uint64_t first = mix((uint64_t)bytes);
    memcpy(buffer, &first, sizeof first);
    check_filled(buffer, (size_t)bytes, (uint64_t)bytes, "last message");
    if (rank != 0)
        return;
    qsort(times, (size_t)count, sizeof *times, by_time);
    const double half = times[count / 2] / 2, least = times[0] / 2, rate = (double)bytes / half / (1 << 20);
    if (json)
        printf("{\"bytes\":%ld,\"count\":%ld,\"half_round_trip_us\":%.3f,\"least_us\":%.3f,\"mib_per_s\":%.2f}\n", bytes, count, half * 1e6,
               least * 1e6, rate);
    else
        printf("%9ld bytes %12.2f us %12.2f MiB/s\n", bytes, half * 1e6, rate);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"size", 0, 0}, {"count", 0, 0}, {"json", 0, FLAG}};
    start(argc, argv, options, 3, 2);
    const long only = options[0].value, wanted = options[1].value;
    CHECK(only == 0 || (only >= LEAST && only <= 1 << 30), "--size is 8 to 1073741824 bytes (0: all of 8 to 8388608), not %ld", only);
    const long least = only ? only : LEAST, most = only ? only : MOST;
    if (rank < 2) {
        unsigned char *buffer = allocate((size_t)most);
        double *times = allocate((size_t)(wanted > 200 ? wanted : 200) * sizeof *times);
        for (long bytes = least; bytes <= most; bytes *= 2)
            measure(buffer, times, bytes, wanted ? wanted : default_count(bytes), (int)options[2].value);
        free(times);
        free(buffer);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK pingpong %ld to %ld bytes\n", least, most);
    MPI_Finalize();
    return 0;
}
