/* Mutexes that check their owner are held while the program is saved, by the main thread and by another; each owner can release its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 4 };

static pthread_mutex_t mutexes[2][KINDS];

static void take(int who) {
    for (int kind = 0; kind < KINDS; kind++) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        if (kind == 0) pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
        if (kind == 1) pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ERRORCHECK);
        if (kind == 2) pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        if (kind == 3) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
        pthread_mutex_init(&mutexes[who][kind], &attributes);
        pthread_mutex_lock(&mutexes[who][kind]);
    }
    if (pthread_mutex_lock(&mutexes[who][0])) printf("not recursive\n");
}

static void give(int who) {
    if (pthread_mutex_unlock(&mutexes[who][0])) printf("%d: 0 is not ours\n", who);
    for (int kind = 0; kind < KINDS; kind++) {
        int error = pthread_mutex_unlock(&mutexes[who][kind]);
        if (error) printf("%d: %d is not ours: %d\n", who, kind, error);
        if (pthread_mutex_trylock(&mutexes[who][kind])) printf("%d: %d is not free\n", who, kind);
    }
}

static void *other(void *argument) {
    take(1);
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 800; i++) usleep(1000);
    give(1);
    return 0;
}

int main(void) {
    pthread_t thread;
    take(0);
    pthread_create(&thread, 0, other, 0);
    pthread_join(thread, 0);
    give(0);
    printf("released\n");
    return 0;
}
