/* Descriptors of every kind that comes back, checked after a second in which the checkpoint happens. Run in an empty directory. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                               \
    do {                                                               \
        if (!(condition)) {                                            \
            printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
            exit(3);                                                   \
        }                                                              \
    } while (0)

static volatile int alarms, ticks;
static void on_alarm(int signal) { alarms++; }
static void on_tick(int signal) { ticks++; }

int main(void) {
    char buffer[64] = {0};
    CHECK(mkdir("sub", 0700) == 0 && chdir("sub") == 0);
    umask(027);
    int file = open("file", O_CREAT | O_RDWR, 0600), twin = dup(file), append = open("log", O_CREAT | O_WRONLY | O_APPEND, 0600);
    CHECK(write(file, "0123456789", 10) == 10 && lseek(file, 4, SEEK_SET) == 4 && write(append, "one ", 4) == 4);
    int gone = open("gone", O_CREAT | O_RDWR, 0600);
    CHECK(write(gone, "deleted", 7) == 7 && unlink("gone") == 0 && lseek(gone, 2, SEEK_SET) == 2);
    int directory = open(".", O_RDONLY | O_DIRECTORY), null = open("/dev/null", O_RDWR), far = dup2(file, 700);
    int ends[2];
    CHECK(pipe2(ends, O_NONBLOCK) == 0 && write(ends[1], "in the pipe", 11) == 11);
    int event = eventfd(40, EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    struct itimerspec soon = {.it_value = {0, 900000000}};
    CHECK(timerfd_settime(timer, 0, &soon, 0) == 0);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    CHECK(sigprocmask(SIG_BLOCK, &set, 0) == 0);
    int signals = signalfd(-1, &set, SFD_NONBLOCK);
    raise(SIGUSR2);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event watch = {.events = EPOLLIN | EPOLLET, .data.u64 = 0x1234567890abcdef};
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &watch) == 0);
    int memory = memfd_create("named", 0);
    CHECK(ftruncate(memory, 8192) == 0);
    char *view = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0), *again = mmap(0, 4096, PROT_READ, MAP_SHARED, memory, 0);
    char *shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *kept = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(madvise(kept, 4096, MADV_DONTFORK) == 0 && madvise(kept + 4096, 4096, MADV_WIPEONFORK) == 0);
    strcpy(kept, "not forked"), strcpy(kept + 4096, "wiped");
    char *hidden = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *mapped = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    char *own = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    strcpy(view, "memfd"), strcpy(shared, "shared"), strcpy(hidden, "hidden");
    own[0] = 'x';
    CHECK(mprotect(hidden, 4096, PROT_NONE) == 0);
    stack_t alternate = {.ss_sp = malloc(65536), .ss_size = 65536}, found;
    CHECK(sigaltstack(&alternate, 0) == 0);
    signal(SIGALRM, on_alarm), signal(SIGUSR1, on_tick);
    struct itimerval in_a_while = {.it_value = {0, 800000}};
    CHECK(setitimer(ITIMER_REAL, &in_a_while, 0) == 0);
    timer_t posix;
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec often = {.it_value = {0, 100000000}, .it_interval = {0, 100000000}};
    CHECK(timer_create(CLOCK_MONOTONIC, &how, &posix) == 0 && timer_settime(posix, 0, &often, 0) == 0);
    printf("ready\n");
    fflush(stdout);

    for (int i = 0; i < 12; i++) {
        struct timespec left = {0, 100000000};
        while (nanosleep(&left, &left) != 0) CHECK(errno == EINTR);
    }
    int before = ticks;
    while (ticks < before + 2) usleep(10000);
    CHECK(alarms == 1);
    CHECK(sigaltstack(0, &found) == 0 && found.ss_sp == alternate.ss_sp && found.ss_size == 65536);
    CHECK(strcmp(view, "memfd") == 0 && strcmp(again, "memfd") == 0 && strcmp(shared, "shared") == 0);
    view[4096] = 1;
    view[0] = 'M';
    CHECK(again[0] == 'M' && pread(memory, buffer, 5, 0) == 5 && memcmp(buffer, "Memfd", 5) == 0);
    CHECK(mprotect(hidden, 4096, PROT_READ) == 0 && strcmp(hidden, "hidden") == 0);
    CHECK(strcmp(kept, "not forked") == 0 && strcmp(kept + 4096, "wiped") == 0);
    CHECK(mapped[1] == '1' && own[0] == 'x' && own[1] == '1');
    CHECK(read(twin, buffer, 3) == 3 && memcmp(buffer, "456", 3) == 0 && lseek(file, 0, SEEK_CUR) == 7 && lseek(far, 0, SEEK_CUR) == 7);
    CHECK(write(append, "two", 3) == 3);
    int log = open("log", O_RDONLY);
    CHECK(read(log, buffer, 64) == 7 && memcmp(buffer, "one two", 7) == 0);
    CHECK(read(gone, buffer, 64) == 5 && memcmp(buffer, "leted", 5) == 0);
    CHECK(fchdir(directory) == 0 && write(null, "x", 1) == 1);
    struct epoll_event ready[2];
    CHECK(epoll_wait(epoll, ready, 2, 1000) == 1 && ready[0].data.u64 == 0x1234567890abcdef);
    CHECK(fcntl(epoll, F_GETFD) == FD_CLOEXEC && fcntl(file, F_GETFD) == 0);
    CHECK(read(ends[0], buffer, 64) == 11 && memcmp(buffer, "in the pipe", 11) == 0);
    CHECK(read(ends[0], buffer, 64) == -1 && errno == EAGAIN);
    uint64_t count;
    CHECK(read(event, &count, 8) == 8 && count == 40);
    CHECK(read(timer, &count, 8) == 8 && count == 1);
    struct signalfd_siginfo info;
    CHECK(read(signals, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR2);
    CHECK(umask(0) == 027);
    struct stat here;
    CHECK(stat("file", &here) == 0 && here.st_size == 10);
    printf("all there\n");
    return 0;
}
