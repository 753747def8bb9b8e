/* What the test programs share: options, checks that end the job, patterns.
 *
 * Every program checks its own results. The first mismatch is reported on stderr and ends the job with exit code 1; when all is well rank 0
 * prints one final line, "OK <program> ...". Nothing in that line depends on time, except in pingpong.
 */
#ifndef RADIC_CHECK_H
#define RADIC_CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

__attribute__((format(printf, 1, 2), noreturn)) static inline void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAIL rank %d: ", rank);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

/* The rest of the arguments is a printf format and what it prints: what was seen, what was due. */
#define CHECK(condition, ...)                                                                                                              \
    do {                                                                                                                                   \
        if (!(condition))                                                                                                                  \
            fail(__VA_ARGS__);                                                                                                             \
    } while (0)

struct option {
    const char *name; /* without the two dashes */
    long value;       /* the default, and after start() what the user wants */
    long least;       /* smaller values are refused; a flag without a value has -1 */
};

enum { FLAG = -1 };

static inline void usage(const struct option *options, int n, const char *wrong)
{
    if (rank == 0) {
        fprintf(stderr, "wrong argument: %s\nusage:", wrong);
        for (int i = 0; i < n; i++)
            fprintf(stderr, options[i].least == FLAG ? " [--%s]" : " [--%s N]", options[i].name);
        fputc('\n', stderr);
    }
    MPI_Finalize();
    exit(2);
}

/* Starts MPI and reads the command line into options. */
static inline void start(int argc, char **argv, struct option *options, int n, int least_ranks)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int a = 1; a < argc; a++) {
        int i = 0;
        while (i < n && (strncmp(argv[a], "--", 2) != 0 || strcmp(argv[a] + 2, options[i].name) != 0))
            i++;
        if (i == n)
            usage(options, n, argv[a]);
        if (options[i].least == FLAG) {
            options[i].value = 1;
            continue;
        }
        char *end = NULL;
        if (a + 1 < argc)
            options[i].value = strtol(argv[a + 1], &end, 10);
        if (end == NULL || end == argv[a + 1] || *end != '\0' || options[i].value < options[i].least)
            usage(options, n, argv[a]);
        a++;
    }
    CHECK(size >= least_ranks, "%s needs %d ranks or more, not %d", argv[0], least_ranks, size);
}

static inline void *allocate(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    CHECK(memory != NULL, "out of memory: %zu bytes", bytes);
    return memory;
}

/* For qsort: times, in ascending order. */
static inline int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A well mixed number that depends on every bit of x (the finalizer of splitmix64). */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Bytes that tell where they belong: each word differs with the seed and with its place. */
static inline void fill(unsigned char *bytes, size_t n, uint64_t seed)
{
    for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t word = mix(seed ^ at);
        memcpy(bytes + at, &word, n - at < sizeof word ? n - at : sizeof word);
    }
}

static inline void check_filled(const unsigned char *bytes, size_t n, uint64_t seed, const char *what)
{
    for (size_t at = 0; at < n; at += sizeof(uint64_t)) {
        uint64_t word = mix(seed ^ at);
        CHECK(memcmp(bytes + at, &word, n - at < sizeof word ? n - at : sizeof word) == 0, "%s: byte %zu of %zu is wrong", what, at, n);
    }
}

#endif
