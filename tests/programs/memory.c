/* As much memory as is asked for, of which each step changes a part, while a message goes to each neighbour in a ring: what `radic bench recover`
 * restarts.
 *
 * The memory is checked in the end: a word's value tells how often it was worked on. With --json rank 0 prints the time of all steps and the longest
 * one, which is its pause when another rank goes back; with --progress P a line every P steps.
 */
#include "check.h"

/* The words from `at` on, each once more; returns where the next ones begin. */
static size_t work(uint64_t *memory, size_t words, size_t at, size_t count, uint64_t *lap)
{
    for (size_t i = 0; i < count; i++) {
        memory[at] += *lap;
        if (++at == words) {
            at = 0;
            ++*lap;
        }
    }
    return at;
}

/* In lap l, counted from 1, l is added to a word. */
static void check_memory(const uint64_t *memory, size_t words, size_t at, uint64_t lap)
{
    for (size_t i = 0; i < words; i++) {
        const uint64_t laps = i < at ? lap : lap - 1, due = mix(i) + laps * (laps + 1) / 2;
        CHECK(memory[i] == due, "word %zu is %016llx, not %016llx", i, (unsigned long long)memory[i], (unsigned long long)due);
    }
}

static void exchange(unsigned char *out, unsigned char *in, size_t bytes, long step)
{
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    fill(out, bytes, (uint64_t)step * 4096 + (uint64_t)rank);
    MPI_Sendrecv(out, (int)bytes, MPI_BYTE, next, 1, in, (int)bytes, MPI_BYTE, previous, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check_filled(in, bytes, (uint64_t)step * 4096 + (uint64_t)previous, "message");
}

int main(int argc, char **argv)
{
    struct option options[] = {{"mib", 10, 1}, {"steps", 1000, 1}, {"work", 1024, 1}, {"bytes", 4096, 1}, {"json", 0, FLAG}, {"progress", 0, 0}};
    start(argc, argv, options, 6, 2);
    CHECK(options[0].value <= 1 << 20 && options[2].value <= 1 << 20 && options[3].value <= 1 << 30, "too much");
    const size_t words = (size_t)options[0].value << 17, count = (size_t)options[2].value << 7, bytes = (size_t)options[3].value;
    const long steps = options[1].value, progress = options[5].value;
    uint64_t *memory = allocate(words * sizeof *memory), lap = 1;
    unsigned char *out = allocate(bytes), *in = allocate(bytes);
    for (size_t i = 0; i < words; i++)
        memory[i] = mix(i);

    MPI_Barrier(MPI_COMM_WORLD);
    const double before = MPI_Wtime();
    double last = before, longest = 0;
    size_t at = 0;
    for (long step = 0; step < steps; step++) {
        exchange(out, in, bytes, step);
        at = work(memory, words, at, count, &lap);
        const double now = MPI_Wtime();
        longest = now - last > longest ? now - last : longest;
        last = now;
        if (rank == 0 && progress && (step + 1) % progress == 0) {
            printf("step %ld of %ld\n", step + 1, steps);
            fflush(stdout);
        }
    }
    if (rank == 0 && options[4].value)
        printf("{\"steps\":%ld,\"seconds\":%.6f,\"longest_ms\":%.3f}\n", steps, last - before, longest * 1e3);
    check_memory(memory, words, at, lap);
    free(memory);
    free(out);
    free(in);
    /* Everybody has checked. */
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("OK memory %d ranks %ld MiB %ld steps\n", size, options[0].value, steps);
    MPI_Finalize();
    return 0;
}
