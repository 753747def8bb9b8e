/* Says "ready", waits for the file "go" in its folder, and dies, or nearly, in the way that its argument names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int traps;

static void own(int signal, siginfo_t *info, void *context)
{
    (void)context;
    dprintf(1, "own handler: signal %d at %p\n", signal, info->si_addr);
    _exit(7);
}

static void trap(int signal)
{
    (void)signal;
    traps++;
}

static void pause_until_go(void)
{
    while (access("go", F_OK) != 0)
        usleep(1000);
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "";
    struct sigaction action = {.sa_sigaction = own, .sa_flags = SA_SIGINFO};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    if (strcmp(way, "handler") == 0)
        sigaction(SIGSEGV, &action, NULL);
    if (strcmp(way, "trap") == 0 || strcmp(way, "pending") == 0)
        signal(SIGTRAP, trap);
    if (strcmp(way, "pending") == 0) {
        sigprocmask(SIG_BLOCK, &set, NULL);
        raise(SIGTRAP);
    }
    if (strcmp(way, "missing") == 0)
        close(open("read", O_CREAT | O_WRONLY, 0600)), open("read", O_RDONLY);
    puts("ready");
    fflush(stdout);
    pause_until_go();
    if (strcmp(way, "abort") == 0)
        abort();
    if (strcmp(way, "trap") == 0)
        __asm__ volatile("int3");
    if (strcmp(way, "pending") == 0)
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    /* glibc's handler of this signal, which finds nothing to do for setuid, as little as the kernel would. */
    if (strcmp(way, "setxid") == 0)
        syscall(SYS_tgkill, getpid(), (int)syscall(SYS_gettid), 33);
    if (strcmp(way, "null") == 0 || strcmp(way, "handler") == 0)
        *(volatile int *)0x10 = 1;
    printf("traps %d\n", traps);
    return 0;
}
