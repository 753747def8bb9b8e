/* Ranks 0 and 1 exchange messages in rounds of about the same time: how many, and of what length, follows from how long the last round took, as in benchmarks that choose their
 * repeat counts. What a message holds depends on the times, too, so a rank that is told other times than before shows. */
#include "check.h"

#ifndef now
#define now MPI_Wtime
#define NAME "selftimed"
#endif

enum { LONGEST = 4096, MOST = 5000 };

struct round {
    long count, bytes;
    uint64_t seed;
};

static void exchange(unsigned char *buffer, const struct round *round, int i)
{
    const uint64_t seed = round->seed + (uint64_t)i;
    const size_t bytes = (size_t)round->bytes;
    if (rank == 0) {
        fill(buffer, bytes, seed);
        MPI_Send(buffer, (int)bytes, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
    }
    MPI_Recv(buffer, (int)bytes, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check_filled(buffer, bytes, seed, "message");
    if (rank == 1)
        MPI_Send(buffer, (int)bytes, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
}

/* The next round, by the time that the last one took. */
static struct round next(struct round last, double took, double wanted)
{
    double count = (double)last.count * wanted / (took > 1e-9 ? took : 1e-9);
    count = count < 1 ? 1 : count > MOST ? MOST : count;
    const uint64_t seed = mix((uint64_t)(took * 1e9));
    return (struct round){(long)count, 1 + (long)(seed % LONGEST), seed};
}

int main(int argc, char **argv)
{
    static unsigned char buffer[LONGEST];
    struct option options[] = {{"rounds", 30, 1}, {"ms", 100, 1}};
    start(argc, argv, options, 2, 2);
    const long rounds = options[0].value;
    const double wanted = (double)options[1].value / 1e3;
    struct round round = {100, 8, 1};
    for (long i = 0; i < rounds; i++) {
        MPI_Bcast(&round, (int)sizeof round, MPI_BYTE, 0, MPI_COMM_WORLD);
        const double before = now();
        for (int at = 0; at < round.count; at++)
            exchange(buffer, &round, at);
        round = next(round, now() - before, wanted);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK " NAME " 2 ranks %ld rounds\n", rounds);
    MPI_Finalize();
    return 0;
}
