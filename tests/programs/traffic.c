/* Patterns of messages, each checked, and the median time of one operation: windows of messages that are in flight together from rank 0 to
 * rank 1, which answers each window; or an all-reduce, an all-to-all, or one of those whose parts have lengths of their own, of all ranks.
 *
 * With --kept the senders of windows and of an all-to-all also copy what they send, past the caches, into a ring of so many MiB. That
 * is the least which a sender must do so that it can send a message again though the program has changed it. */
#include "check.h"

#include <emmintrin.h>

enum { WINDOW, ALLREDUCE, ALLTOALL, ALLTOALLV, ALLGATHERV };

static long bytes, window, words;
static unsigned char *ring;
static long ring_bytes, ring_at;

static void keep(const void *message, long length)
{
    if (ring == NULL)
        return;
    const long whole = length / 16 * 16, taken = (length + 15) / 16 * 16;
    if (ring_at + taken > ring_bytes)
        ring_at = 0;
    const unsigned char *from = message;
    unsigned char *to = ring + ring_at;
    for (long at = 0; at < whole; at += 16)
        _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
    memcpy(to + whole, from + whole, (size_t)(length - whole));
    _mm_sfence();
    ring_at += taken;
}

/* Each message has the round and its place in front. */
static uint64_t stamp(long round, long place)
{
    return mix(((uint64_t)round << 20) ^ (uint64_t)place);
}

static void send_window(unsigned char *buffer, MPI_Request *requests, long round)
{
    for (long i = 0; i < window; i++) {
        const uint64_t mark = stamp(round, i);
        memcpy(buffer + i * bytes, &mark, sizeof mark);
        MPI_Isend(buffer + i * bytes, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
        keep(buffer + i * bytes, bytes);
    }
    MPI_Waitall((int)window, requests, MPI_STATUSES_IGNORE);
    uint64_t answer;
    MPI_Recv(&answer, sizeof answer, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(answer == stamp(round, window), "round %ld: the answer is of another one", round);
}

static void receive_window(unsigned char *buffer, MPI_Request *requests, long round)
{
    for (long i = 0; i < window; i++)
        MPI_Irecv(buffer + i * bytes, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
    MPI_Waitall((int)window, requests, MPI_STATUSES_IGNORE);
    for (long i = 0; i < window; i++) {
        const uint64_t mark = stamp(round, i);
        CHECK(memcmp(buffer + i * bytes, &mark, sizeof mark) == 0, "round %ld: message %ld is another one", round, i);
    }
    const uint64_t answer = stamp(round, window);
    MPI_Send(&answer, sizeof answer, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
}

static void all_reduce(uint64_t *mine, uint64_t *sum, long round)
{
    mine[0] = stamp(round, rank) >> 8;
    mine[words - 1] = mine[0];
    MPI_Allreduce(mine, sum, (int)words, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    uint64_t expected = 0;
    for (int r = 0; r < size; r++)
        expected += stamp(round, r) >> 8;
    CHECK(sum[0] == expected && sum[words - 1] == expected, "round %ld: the sum is wrong", round);
}

static void all_to_all(uint64_t *mine, uint64_t *theirs, long round)
{
    for (int r = 0; r < size; r++)
        mine[r * words] = stamp(round, rank * size + r);
    for (int r = 0; r < size; r++)
        if (r != rank)
            keep(mine + r * words, bytes);
    MPI_Alltoall(mine, (int)words, MPI_UINT64_T, theirs, (int)words, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        CHECK(theirs[r * words] == stamp(round, r * size + rank), "round %ld: what rank %d sent is wrong", round, r);
}

/* A part from one rank to another in this round, in words: some are empty. */
static int part(long round, int from, int to)
{
    return (int)(mix(stamp(round, from * size + to)) % (uint64_t)(words + 1));
}

/* To all others parts of different lengths: with one receiver for all (as if to rank 0) it is what each has for everybody. */
static void vary(uint64_t *mine, uint64_t *theirs, long round, int what, int *shape)
{
    int *out = shape, *out_at = shape + size, *in = shape + 2 * size, *in_at = shape + 3 * size;
    for (int r = 0; r < size; r++) {
        out[r] = part(round, rank, r);
        in[r] = part(round, r, what == ALLTOALLV ? rank : 0);
        out_at[r] = in_at[r] = (int)words * r;
        mine[out_at[r]] = stamp(round, what == ALLTOALLV ? rank * size + r : rank);
    }
    if (what == ALLTOALLV)
        MPI_Alltoallv(mine, out, out_at, MPI_UINT64_T, theirs, in, in_at, MPI_UINT64_T, MPI_COMM_WORLD);
    else
        MPI_Allgatherv(mine, in[rank], MPI_UINT64_T, theirs, in, in_at, MPI_UINT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++)
        CHECK(in[r] == 0 || theirs[in_at[r]] == stamp(round, what == ALLTOALLV ? r * size + rank : r), "round %ld: what rank %d sent is wrong", round, r);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"window", 0, 0}, {"allreduce", 0, FLAG}, {"alltoall", 0, FLAG}, {"bytes", 8, 8}, {"rounds", 1000, 1}, {"json", 0, FLAG}, {"alltoallv", 0, FLAG}, {"allgatherv", 0, FLAG}, {"kept", 0, 0}};
    start(argc, argv, options, 9, 2);
    window = options[0].value;
    bytes = options[3].value;
    words = bytes / (long)sizeof(uint64_t);
    const long rounds = options[4].value;
    const int what = options[1].value ? ALLREDUCE : options[2].value ? ALLTOALL : options[6].value ? ALLTOALLV : options[7].value ? ALLGATHERV : WINDOW;
    const int wanted = (window > 0) + (int)(options[1].value + options[2].value + options[6].value + options[7].value);
    CHECK(wanted == 1, "one of --window, --allreduce, --alltoall, --alltoallv and --allgatherv is wanted");
    CHECK(window <= 1 << 16 && bytes <= 64 << 20, "--window is at most 65536 messages, --bytes at most 67108864");
    const long kept = options[8].value;
    CHECK(kept == 0 || ((what == WINDOW || what == ALLTOALL) && kept <= 1 << 14 && bytes <= kept << 20),
          "--kept goes with --window and --alltoall, is at most 16384, and has room for one message");
    if (kept > 0) {
        ring_bytes = kept << 20;
        ring = allocate((size_t)ring_bytes);
        memset(ring, 1, (size_t)ring_bytes);
    }
    const size_t places = what == WINDOW ? (size_t)window : (size_t)size;
    unsigned char *out = allocate(places * (size_t)bytes), *in = allocate(places * (size_t)bytes);
    memset(out, rank, places * (size_t)bytes);
    MPI_Request *requests = allocate(places * sizeof *requests);
    int *shape = allocate(4 * (size_t)size * sizeof *shape);
    double *times = allocate((size_t)rounds * sizeof *times);
    for (long round = 0; round < rounds; round++) {
        const double before = MPI_Wtime();
        if (what == ALLREDUCE)
            all_reduce((uint64_t *)out, (uint64_t *)in, round);
        else if (what == ALLTOALL)
            all_to_all((uint64_t *)out, (uint64_t *)in, round);
        else if (what == ALLTOALLV || what == ALLGATHERV)
            vary((uint64_t *)out, (uint64_t *)in, round, what, shape);
        else if (rank == 0)
            send_window(out, requests, round);
        else if (rank == 1)
            receive_window(in, requests, round);
        times[round] = MPI_Wtime() - before;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        qsort(times, (size_t)rounds, sizeof *times, by_time);
        const double median = times[rounds / 2] * 1e6;
        if (options[5].value)
            printf("{\"bytes\":%ld,\"rounds\":%ld,\"us\":%.3f}\n", bytes, rounds, median);
        else
            printf("%9ld bytes %12.2f us\n", bytes, median);
        printf("OK traffic %d ranks %ld bytes\n", size, bytes);
    }
    free(ring);
    free(times);
    free(shape);
    free(requests);
    free(in);
    free(out);
    MPI_Finalize();
    return 0;
}
