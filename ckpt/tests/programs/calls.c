/* Blocking calls in ten threads; none may return EINTR. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <time.h>
#include <unistd.h>

static struct timespec wait_time = {0, 700000000};
static int pipe_ends[2], epoll, event;
static sem_t semaphore;

static void report(const char *call, int bad) {
    if (bad) printf("%s was interrupted\n", call), exit(3);
}

static void *call(void *argument) {
    struct pollfd one = {pipe_ends[0], POLLIN, 0};
    struct epoll_event out;
    fd_set set;
    struct timeval while_ = {0, 700000};
    struct timespec until;
    char byte;
    sigset_t usr1;
    FD_ZERO(&set);
    FD_SET(pipe_ends[0], &set);
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    switch ((long)argument) {
    case 0: report("nanosleep", nanosleep(&wait_time, 0) != 0); break;
    case 1: report("poll", poll(&one, 1, 700) != 0); break;
    case 2: report("epoll_wait", epoll_wait(epoll, &out, 1, 700) != 0); break;
    case 3: report("select", select(pipe_ends[0] + 1, &set, 0, 0, &while_) != 0); break;
    case 4: report("sem_timedwait", sem_timedwait(&semaphore, &until) != -1 || errno != ETIMEDOUT); break;
    case 5: report("read", read(pipe_ends[0], &byte, 1) != 1); break;
    case 6: report("sigtimedwait", sigtimedwait(&usr1, 0, &wait_time) != -1 || errno != EAGAIN); break;
    case 7: report("clock_nanosleep", clock_nanosleep(CLOCK_MONOTONIC, 0, &wait_time, 0) != 0); break;
    case 8: report("ppoll", ppoll(&one, 1, &wait_time, 0) != 0); break;
    case 9: { eventfd_t value; report("eventfd", eventfd_read(event, &value) != 0); break; }
    }
    return 0;
}

int main(void) {
    sigset_t usr1;
    sigemptyset(&usr1), sigaddset(&usr1, SIGUSR1), sigprocmask(SIG_BLOCK, &usr1, 0);
    if (pipe(pipe_ends) || (epoll = epoll_create1(0)) < 0 || (event = eventfd(0, 0)) < 0) return 4;
    sem_init(&semaphore, 0, 0);
    pthread_t threads[10];
    for (long i = 0; i < 10; i++) pthread_create(&threads[i], 0, call, (void *)i);
    printf("ready\n");
    fflush(stdout);
    struct timespec long_enough = {2, 0};
    report("nanosleep", nanosleep(&long_enough, 0) != 0);
    eventfd_write(event, 1);
    if (write(pipe_ends[1], "x", 1) != 1) return 5;
    for (int i = 0; i < 10; i++) pthread_join(threads[i], 0);
    printf("not once\n");
    return 0;
}
