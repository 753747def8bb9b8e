/* Is nudged while it waits, and must not notice; nudges itself first. A second thread waits for nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *wait_for_ever(void *nothing) {
    for (;;) pause();
    return nothing;
}

int main(void) {
    pthread_t second;
    if (pthread_create(&second, 0, wait_for_ever, 0) != 0) return 3;
    int (*nudge_self)(void) = dlsym(RTLD_DEFAULT, "nudge_self");
    if (!nudge_self || nudge_self() != 0) return 2;
    /* The call of its own was answered before it returned. */
    printf(access("asked", F_OK) == 0 ? "asked\n" : "not asked\n");
    errno = 0;
    int ring = syscall(SYS_io_uring_setup, 1, 0);
    printf(ring == -1 && errno == ENOSYS ? "no ring\n" : "a ring\n");
    printf(syscall(SYS_getpid) == getpid() ? "itself\n" : "somebody else\n");
    fflush(stdout);
    int result = poll(0, 0, 6000);
    printf(result == 0 ? "slept\n" : "disturbed\n");
    return 5;
}
