/* Reads the processor's counter in all the places where a program may be when the instruction traps, in two threads, for so many turns of 10 ms: traps TURNS. With --record-tsc. No MPI. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "FAIL line %d: %s\n", __LINE__, #condition);                                                                   \
            exit(1);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

extern char **environ;
static long turns;
static sigjmp_buf back;
static volatile int faults;
static volatile uintptr_t nowhere = 8;

/* All registers but those of the instruction are as before, flags, and those of vectors. */
static void check_registers(uint64_t number)
{
    const __m128i vector = _mm_set1_epi64x((int64_t)number);
    __m128i after_vector;
    uint64_t after, flags, low, high = ~0ULL;
    __asm__ volatile("mov %5, %%r10\n\tmovdqa %6, %%xmm9\n\tstd\n\trdtsc\n\tpushfq\n\tpop %1\n\tcld\n\tmov %%r10, %0\n\tmovdqa %%xmm9, %4"
                     : "=&r"(after), "=&r"(flags), "=&a"(low), "=&d"(high), "=m"(after_vector)
                     : "r"(number), "x"(vector)
                     : "r10", "xmm9", "memory");
    CHECK(after == number && memcmp(&vector, &after_vector, sizeof vector) == 0 && (flags & 0x400));
    CHECK(low >> 32 == 0 && high >> 32 == 0);
}

static void check_order(void)
{
    static _Thread_local uint64_t last;
    unsigned processor;
    errno = 77;
    const uint64_t one = __rdtsc(), two = __rdtscp(&processor);
    CHECK(errno == 77 && one >= last && two >= one && processor == 0);
    last = two;
    check_registers(two);
}

static void turn(void)
{
    for (long i = 0; i < turns; i++) {
        struct timespec span = {0, 10000000}, now;
        check_order();
        CHECK(timespec_get(&now, TIME_UTC) == TIME_UTC && now.tv_sec > 1700000000); /* within the C library, by the kernel's page */
        nanosleep(&span, NULL);
    }
    int state = 0;
    CHECK(prctl(PR_GET_TSC, &state) == 0 && state == PR_TSC_SIGSEGV);
}

static void *thread(void *unused)
{
    sigset_t all;
    sigfillset(&all);
    CHECK(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0);
    turn();
    return unused;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    CHECK(signal == SIGSEGV && info->si_addr == (void *)8);
    check_order();
    faults++;
    siglongjmp(back, 1);
}

/* Faults of the program are its own: its handler gets them, or they end it. */
static void check_faults(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, old;
    sigfillset(&action.sa_mask);
    CHECK(sigaction(SIGSEGV, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    for (int i = 0; i < 3; i++)
        if (!sigsetjmp(back, 1))
            *(volatile int *)nowhere = 1;
    CHECK(faults == 3);
    CHECK(sigaction(SIGSEGV, NULL, &old) == 0 && old.sa_sigaction == on_fault);
    CHECK((uintptr_t)signal(SIGSEGV, SIG_DFL) == (uintptr_t)on_fault);
    check_order();
}

static int end_of(pid_t child)
{
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

/* What the program starts has no trap, and none of our handlers. */
static void check_children(void)
{
    char *const words[] = {"date", NULL};
    pid_t child = fork();
    if (child == 0) {
        int state = 0;
        prctl(PR_GET_TSC, &state);
        if (state != PR_TSC_ENABLE || __rdtsc() == 0 || !freopen("/dev/null", "w", stdout))
            _exit(1);
        execvp("date", words);
        _exit(2);
    }
    CHECK(end_of(child) == 0);
    child = fork();
    if (child == 0)
        *(volatile int *)nowhere = 1;
    CHECK(WTERMSIG(end_of(child)) == SIGSEGV);
    CHECK(system("date > /dev/null") == 0);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", 1, 0) == 0);
    CHECK(posix_spawnp(&child, "date", &actions, NULL, words, environ) == 0);
    CHECK(end_of(child) == 0);
    CHECK(execl("/no/such/program", "x", NULL) == -1);
    check_order();
}

int main(int argc, char **argv)
{
    pthread_t other;
    CHECK(argc == 2);
    turns = atol(argv[1]);
    check_faults();
    check_children();
    CHECK(pthread_create(&other, NULL, thread, NULL) == 0);
    turn();
    CHECK(pthread_join(other, NULL) == 0);
    faults = 0;
    check_faults();
    printf("OK traps\n");
    return 0;
}
