/* One message from rank 0 to rank 1, and back what rank 1 has made of it: longer than any buffer on the way. Other ranks wait.
 *
 * With --kept rank 2 is sent it as well, a piece at a time to both, into one buffer that it has used before. That is the least which must be done so that the message outlives its sender and its
 * receiver: a floor for what protection can cost. */
#include "check.h"

static uint64_t word(long round, size_t at)
{
    return mix(((uint64_t)round << 48) ^ (uint64_t)at);
}

/* As many bytes as there are: a count of MPI ends at two thousand millions, so they are counted in units of 1 MiB. */
static MPI_Datatype mebibyte(void)
{
    MPI_Datatype type;
    MPI_Type_contiguous(1 << 20, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    return type;
}

/* Sends it, or takes it, to the ranks up to `last`, some MiB at a time. */
static void keep(uint64_t *data, long mib, MPI_Datatype type, int last)
{
    enum { PIECE = 8 };
    const size_t piece = ((size_t)PIECE << 20) / sizeof *data;
    for (long at = 0; at < mib; at += PIECE) {
        const int part = (int)(mib - at < PIECE ? mib - at : PIECE);
        uint64_t *from = data + (size_t)(at / PIECE) * piece;
        MPI_Request requests[2];
        if (rank == 0) {
            for (int to = 1; to <= last; to++)
                MPI_Isend(from, part, type, to, 1, MPI_COMM_WORLD, &requests[to - 1]);
            MPI_Waitall(last, requests, MPI_STATUSES_IGNORE);
        } else {
            MPI_Recv(from, part, type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
    }
}

int main(int argc, char **argv)
{
    struct option options[] = {{"mib", 2200, 1}, {"rounds", 1, 1}, {"kept", 0, FLAG}};
    start(argc, argv, options, 3, 2);
    const int kept = (int)options[2].value, last = kept ? 2 : 1;
    CHECK(!kept || size > 2, "--kept needs three ranks, not %d", size);
    const long mib = options[0].value, rounds = options[1].value;
    CHECK(mib < 1 << 20, "--mib is at most 1048575");
    const size_t words = ((size_t)mib << 20) / sizeof(uint64_t), step = 509;
    uint64_t *data = rank <= last ? allocate(words * sizeof *data) : NULL;
    MPI_Datatype type = mebibyte();
    for (long round = 0; round < rounds; round++) {
        const double before = MPI_Wtime();
        if (rank == 0) {
            for (size_t i = 0; i < words; i++)
                data[i] = word(round, i);
            if (kept)
                keep(data, mib, type, last);
            else
                MPI_Send(data, (int)mib, type, 1, 1, MPI_COMM_WORLD);
            uint64_t sum;
            MPI_Recv(&sum, 1, MPI_UINT64_T, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            uint64_t expected = 0;
            for (size_t i = 0; i < words; i += step)
                expected += word(round, i);
            CHECK(sum == expected, "round %ld: the sum is wrong", round);
            fprintf(stderr, "%ld MiB: %.2f s\n", mib, MPI_Wtime() - before);
        } else if (rank == 1) {
            if (kept)
                keep(data, mib, type, last);
            else
                MPI_Recv(data, (int)mib, type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            uint64_t sum = 0;
            for (size_t i = 0; i < words; i += step) {
                CHECK(data[i] == word(round, i), "round %ld: word %zu is wrong", round, i);
                sum += data[i];
            }
            MPI_Send(&sum, 1, MPI_UINT64_T, 0, 2, MPI_COMM_WORLD);
        } else if (rank <= last) {
            keep(data, mib, type, last);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(data);
    if (rank == 0)
        printf("OK large %d ranks %ld MiB\n", size, mib);
    MPI_Finalize();
    return 0;
}
