/* Every rank passes a number to its neighbour, round after round; each number depends on all before it, and on memory that is as large as it is asked for.
 *
 * With --note each rank appends the number of each round to a file of its own, "rounds.RANK" in the working directory. The file is open only while it is
 * written to, so no checkpoint knows of it, and none takes a line back: a round that is done once more is noted once more.
 *
 * With --linger M each rank says that it is in MPI_Finalize, and stays there for M milliseconds times its rank before it does what the library wants to do;
 * then it stays as long once more, before it exits.
 *
 * With --die rank 1 dies of a fault for each of the files "die/a" and "die/b" in the working directory, which it removes: a round that is done once more finds
 * what is left of them.
 */
#define _DEFAULT_SOURCE
#include "check.h"
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

enum { PAGE_WORDS = 512, TOUCHED = 64 };

static long linger;

static void note(long round)
{
    char name[32], line[32];
    snprintf(name, sizeof name, "rounds.%d", rank);
    const int length = snprintf(line, sizeof line, "%ld\n", round);
    const int file = open(name, O_WRONLY | O_CREAT | O_APPEND, 0666);
    CHECK(file >= 0 && write(file, line, (size_t)length) == length && close(file) == 0, "round %ld cannot be noted in %s", round, name);
}

static void pause_ms(long ms)
{
    const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* The standard has the attributes of MPI_COMM_SELF deleted as the first act of MPI_Finalize. */
static int finalizing(MPI_Comm comm, int key, void *value, void *state)
{
    (void)comm, (void)key, (void)value, (void)state;
    printf("rank %d is in MPI_Finalize\n", rank);
    fflush(stdout);
    pause_ms(linger * rank);
    return MPI_SUCCESS;
}

/* Removes a file, then writes where nothing is. */
static void die(void)
{
    int *volatile nowhere = (int *)0x10;
    if (unlink("die/a") == 0 || unlink("die/b") == 0)
        *nowhere = 1;
}

/* Changes some pages, others in each round, and returns what was there. */
static uint64_t stir(uint64_t *memory, size_t pages, uint64_t seed)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < TOUCHED && pages > 0; i++) {
        uint64_t *word = &memory[mix(seed ^ i) % pages * PAGE_WORDS];
        sum += *word;
        *word = mix(*word ^ seed);
    }
    return sum;
}

int main(int argc, char **argv)
{
    struct option options[] = {{"rounds", 1000, 1}, {"mib", 0, 0}, {"note", 0, FLAG}, {"linger", 0, 0}, {"pause", 0, 0}, {"die", 0, FLAG}};
    start(argc, argv, options, 6, 2);
    const long rounds = options[0].value;
    const size_t words = (size_t)options[1].value << 17;
    uint64_t *memory = allocate(words * sizeof *memory);
    fill((unsigned char *)memory, words * sizeof *memory, (uint64_t)rank);
    linger = options[3].value;
    int key;
    if (linger > 0) {
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, finalizing, &key, NULL);
        MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("rounds begin\n");
    fflush(stdout);
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    uint64_t mine = mix((uint64_t)rank), theirs, all;
    for (long round = 0; round < rounds; round++) {
        MPI_Sendrecv(&mine, 1, MPI_UINT64_T, next, 1, &theirs, 1, MPI_UINT64_T, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        mine = mix(mine ^ theirs ^ stir(memory, words / PAGE_WORDS, theirs));
        if (options[2].value)
            note(round);
        if (options[5].value && rank == 1)
            die();
        if (options[4].value)
            pause_ms(options[4].value);
    }
    for (size_t i = 0; i < words; i++)
        mine += mix(memory[i]);
    free(memory);
    MPI_Reduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK rounds %d ranks %ld rounds %016llx\n", size, rounds, (unsigned long long)all);
    fflush(stdout);
    MPI_Finalize();
    pause_ms(linger * rank);
    return 0;
}
