/* 16 threads: mutexes (plain, recursive and held across sleeps), a condition variable, thread-locals, malloc, threads that come and go.
   Exit code 0 only if nothing returned EINTR and no lock or join failed. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 16, ROUNDS = 800 };
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER, recursive;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int turn, interrupted;
static uint64_t total;
static __thread uint64_t local;

static void check(int bad, const char *what) {
    if (bad) {
        printf("%s: %d\n", what, bad);
        exit(3);
    }
}

static void *identity(void *argument) { return argument; }

static void *work(void *argument) {
    long id = (long)argument;
    uint64_t hash = local = id;
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 100000; k++) hash = hash * 6364136223846793005ULL + k;
        unsigned size = 1000 + (hash >> 50);
        char *memory = malloc(size);
        memset(memory, (int)hash, size);
        hash += memory[size - 1];
        free(memory);
        check(pthread_mutex_lock(&recursive), "lock");
        check(pthread_mutex_lock(&recursive), "lock again");
        total += hash;
        if (id == 0 && usleep(1000) != 0) interrupted += errno == EINTR;
        check(pthread_mutex_unlock(&recursive), "unlock");
        check(pthread_mutex_unlock(&recursive), "unlock again");
        check(pthread_mutex_lock(&plain), "lock");
        while (turn % THREADS != id) pthread_cond_wait(&turned, &plain);
        turn++;
        pthread_cond_broadcast(&turned);
        check(pthread_mutex_unlock(&plain), "unlock");
        if (i % 10 == 0) {
            pthread_t other;
            void *result;
            check(pthread_create(&other, 0, identity, (void *)hash), "create");
            check(pthread_join(other, &result), "join");
            check(result != (void *)hash, "result");
        }
        local += hash;
    }
    return (void *)(hash ^ local);
}

int main(void) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attributes);
    pthread_t threads[THREADS];
    uint64_t sum = 0;
    for (long i = 0; i < THREADS; i++) check(pthread_create(&threads[i], 0, work, (void *)i), "create");
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        check(pthread_join(threads[i], &result), "join");
        sum ^= (uint64_t)result * (i + 1);
    }
    printf("%lu %lu interrupted %d\n", sum, total, interrupted);
    return interrupted != 0;
}
