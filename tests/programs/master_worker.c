/* Rank 0 hands tasks to whoever is free (Probe and Iprobe in turn, ANY_SOURCE) and checks that each result comes exactly once and is right.
 * Workers wait for their tasks with Recv and with Irecv and Test in turn. */
#include "check.h"

enum { TASK = 1, RESULT = 2, STOP = 3, WORDS = 64 };

/* The work: a chain of hashes. The number of words of the result varies with the task, so that messages differ in length. */
static int work(uint64_t task, long effort, uint64_t *result)
{
    uint64_t x = task;
    for (long i = 0; i < effort; i++)
        x = mix(x);
    const int words = 2 + (int)(task % (WORDS - 2));
    result[0] = task;
    for (int i = 1; i < words; i++)
        result[i] = x = mix(x);
    return words;
}

static void receive_task(int testing, uint64_t *task, MPI_Status *status)
{
    if (!testing) {
        MPI_Recv(task, 1, MPI_UINT64_T, 0, MPI_ANY_TAG, MPI_COMM_WORLD, status);
        return;
    }
    MPI_Request request;
    MPI_Irecv(task, 1, MPI_UINT64_T, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
    for (int there = 0; !there;)
        MPI_Test(&request, &there, status);
}

static void worker(long effort)
{
    for (int testing = 0;; testing = !testing) {
        uint64_t task, result[WORDS];
        MPI_Status status;
        receive_task(testing, &task, &status);
        if (status.MPI_TAG == STOP)
            return;
        const int words = work(task, effort, result);
        MPI_Send(result, words, MPI_UINT64_T, 0, RESULT, MPI_COMM_WORLD);
    }
}

static void check_result(const uint64_t *result, int words, long tasks, long effort, unsigned char *seen)
{
    uint64_t expected[WORDS];
    CHECK(words >= 2 && result[0] < (uint64_t)tasks, "a result of %d words for task %llu", words, (unsigned long long)result[0]);
    const int due = work(result[0], effort, expected);
    CHECK(words == due && memcmp(result, expected, (size_t)words * sizeof *result) == 0, "task %llu: wrong result",
          (unsigned long long)result[0]);
    CHECK(!seen[result[0]], "task %llu: result came twice", (unsigned long long)result[0]);
    seen[result[0]] = 1;
}

static void master(long tasks, long effort)
{
    unsigned char *seen = allocate((size_t)tasks);
    memset(seen, 0, (size_t)tasks);
    uint64_t next = 0;
    for (int w = 1; w < size && next < (uint64_t)tasks; w++, next++)
        MPI_Send(&next, 1, MPI_UINT64_T, w, TASK, MPI_COMM_WORLD);
    for (long results = 0; results < tasks; results++) {
        MPI_Status status;
        if (results % 2)
            MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        for (int there = results % 2; !there;)
            MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, &status);
        uint64_t result[WORDS];
        int words;
        MPI_Get_count(&status, MPI_UINT64_T, &words);
        CHECK(status.MPI_TAG == RESULT && words <= WORDS, "tag %d, %d words", status.MPI_TAG, words);
        MPI_Recv(result, words, MPI_UINT64_T, status.MPI_SOURCE, RESULT, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        check_result(result, words, tasks, effort, seen);
        if (next < (uint64_t)tasks) {
            MPI_Send(&next, 1, MPI_UINT64_T, status.MPI_SOURCE, TASK, MPI_COMM_WORLD);
            next++;
        }
    }
    for (int w = 1; w < size; w++)
        MPI_Send(&next, 1, MPI_UINT64_T, w, STOP, MPI_COMM_WORLD);
    free(seen);
    printf("OK master_worker %d ranks %ld tasks\n", size, tasks);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"tasks", 2000, 1}, {"effort", 20000, 0}};
    start(argc, argv, options, 2, 2);
    if (rank == 0)
        master(options[0].value, options[1].value);
    else
        worker(options[1].value);
    MPI_Finalize();
    return 0;
}
