/* Pid, thread ids, name and executable stay; a recursive mutex that is held all the time can be released by its owner. Ends by SIGUSR1. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex;

static void *other(void *argument) {
    pid_t tid = gettid();
    usleep(700000);
    if (gettid() != tid) printf("another tid\n");
    return 0;
}

int main(void) {
    char before[256] = {0}, after[256] = {0}, name[16];
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &attributes);
    pthread_mutex_lock(&mutex);
    pthread_t thread;
    pthread_create(&thread, 0, other, 0);
    prctl(PR_SET_NAME, "a-name");
    pid_t pid = getpid();
    struct timespec then, now;
    if (readlink("/proc/self/exe", before, 255) < 0) return 2;
    clock_gettime(CLOCK_MONOTONIC, &then);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 800; i++) {
        usleep(1000);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec < then.tv_sec) printf("time goes back\n");
    }
    pthread_join(thread, 0);
    if (getpid() != pid) printf("pid %d became %d\n", pid, getpid());
    if (pthread_mutex_unlock(&mutex)) printf("not the owner\n");
    prctl(PR_GET_NAME, name);
    if (strcmp(name, "a-name")) printf("name %s\n", name);
    if (readlink("/proc/self/exe", after, 255) < 0 || strcmp(before, after)) printf("exe %s\n", after);
    free(malloc(1 << 20));
    printf("the same\n");
    fflush(stdout);
    raise(SIGUSR1);
    return 0;
}
