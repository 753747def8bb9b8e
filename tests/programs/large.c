/* One message from rank 0 to rank 1, and back what rank 1 has made of it: longer than any buffer on the way. Other ranks wait. */
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

int main(int argc, char **argv)
{
    struct option options[] = {{"mib", 2200, 1}, {"rounds", 1, 1}};
    start(argc, argv, options, 2, 2);
    const long mib = options[0].value, rounds = options[1].value;
    CHECK(mib < 1 << 20, "--mib is at most 1048575");
    const size_t words = ((size_t)mib << 20) / sizeof(uint64_t), step = 509;
    uint64_t *data = rank < 2 ? allocate(words * sizeof *data) : NULL;
    MPI_Datatype type = mebibyte();
    for (long round = 0; round < rounds; round++) {
        const double before = MPI_Wtime();
        if (rank == 0) {
            for (size_t i = 0; i < words; i++)
                data[i] = word(round, i);
            MPI_Send(data, (int)mib, type, 1, 1, MPI_COMM_WORLD);
            uint64_t sum;
            MPI_Recv(&sum, 1, MPI_UINT64_T, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            uint64_t expected = 0;
            for (size_t i = 0; i < words; i += step)
                expected += word(round, i);
            CHECK(sum == expected, "round %ld: the sum is wrong", round);
            fprintf(stderr, "%ld MiB: %.2f s\n", mib, MPI_Wtime() - before);
        } else if (rank == 1) {
            MPI_Recv(data, (int)mib, type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            uint64_t sum = 0;
            for (size_t i = 0; i < words; i += step) {
                CHECK(data[i] == word(round, i), "round %ld: word %zu is wrong", round, i);
                sum += data[i];
            }
            MPI_Send(&sum, 1, MPI_UINT64_T, 0, 2, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(data);
    if (rank == 0)
        printf("OK large %d ranks %ld MiB\n", size, mib);
    MPI_Finalize();
    return 0;
}
