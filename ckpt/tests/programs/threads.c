/* 16 threads: mutexes (plain, recursive and held across sleeps), a condition variable, thread-locals, malloc, threads that come and go,
   vector registers that stay in use. Argument: rounds. Exit code 0 only if nothing returned EINTR, no lock or join failed and no register
   lost its content. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 16, SPINS = 60000, STEPS = 50000 };
static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER, recursive;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static int rounds, turn, interrupted;
static uint64_t total;
static __thread uint64_t local;

static void check(int bad, const char *what) {
    if (bad) {
        printf("%s: %d\n", what, bad);
        exit(3);
    }
}

struct registers {
    uint64_t vectors[32][8], masks[8];
};

#define EACH16 ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
#define EACH32 ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
#define EACH8 ".irp i,0,1,2,3,4,5,6,7\n"
#define SPIN "1: dec %[spins]\n jnz 1b\n"
#define CLOBBER16 "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", \
    "xmm14", "xmm15"
#define CLOBBER32 CLOBBER16, "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", \
    "xmm28", "xmm29", "xmm30", "xmm31"

/* Loads all registers, spins, and stores them. */
__attribute__((target("avx512f,avx512bw"))) static void hold_zmm(const struct registers *in, struct registers *out, long spins) {
    asm volatile(EACH32 "vmovdqu64 (\\i*64)(%[in]), %%zmm\\i\n.endr\n" EACH8 "kmovq (2048+\\i*8)(%[in]), %%k\\i\n.endr\n" SPIN EACH32
                        "vmovdqu64 %%zmm\\i, (\\i*64)(%[out])\n.endr\n" EACH8 "kmovq %%k\\i, (2048+\\i*8)(%[out])\n.endr\n"
                 : [spins] "+r"(spins)
                 : [in] "r"(in), [out] "r"(out)
                 : CLOBBER32, "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7", "memory", "cc");
}

__attribute__((target("avx"))) static void hold_ymm(const struct registers *in, struct registers *out, long spins) {
    *out = *in;
    asm volatile(EACH16 "vmovdqu (\\i*64)(%[in]), %%ymm\\i\n.endr\n" SPIN EACH16 "vmovdqu %%ymm\\i, (\\i*64)(%[out])\n.endr\n"
                 : [spins] "+r"(spins)
                 : [in] "r"(in), [out] "r"(out)
                 : CLOBBER16, "memory", "cc");
}

static int zmm(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"); }

static void hold(uint64_t seed) {
    struct registers in, out;
    uint64_t *words = (uint64_t *)&in;
    for (size_t i = 0; i < sizeof in / 8; i++) words[i] = seed = seed * 6364136223846793005ULL + i;
    memset(&out, 0, sizeof out);
    (zmm() ? hold_zmm : hold_ymm)(&in, &out, SPINS);
    check(memcmp(&in, &out, sizeof in), "registers");
}

static void *identity(void *argument) { return argument; }

static uint64_t churn(uint64_t hash) {
    unsigned size = 1000 + (hash >> 50);
    char *memory = malloc(size);
    memset(memory, (int)hash, size);
    hash += memory[size - 1];
    free(memory);
    return hash;
}

static void come_and_go(uint64_t hash) {
    pthread_t other;
    void *result;
    check(pthread_create(&other, 0, identity, (void *)hash), "create");
    check(pthread_join(other, &result), "join");
    check(result != (void *)hash, "result");
}

static void *work(void *argument) {
    long id = (long)argument;
    uint64_t hash = local = id;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < STEPS; k++) hash = hash * 6364136223846793005ULL + k;
        hold(hash);
        hash = churn(hash);
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
        if (i % 10 == 0) come_and_go(hash);
        local += hash;
    }
    return (void *)(hash ^ local);
}

int main(int count, char **arguments) {
    rounds = count > 1 ? atoi(arguments[1]) : 800;
    check(!__builtin_cpu_supports("avx"), "this processor has no AVX");
    printf("%s\n", zmm() ? "zmm and mask registers" : "ymm registers: this processor has no AVX-512");
    fflush(stdout);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attributes);
    pthread_t threads[THREADS];
    uint64_t sum = 0;
    for (long i = 0; i < THREADS; i++) check(pthread_create(&threads[i], 0, work, (void *)i), "create");
    for (int i = 0; i < THREADS; i++) {
        void *result;
        check(pthread_join(threads[i], &result), "join");
        sum ^= (uint64_t)result * (i + 1);
    }
    printf("%lu %lu interrupted %d\n", sum, total, interrupted);
    return interrupted != 0;
}
