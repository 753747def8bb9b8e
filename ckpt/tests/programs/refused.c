/* Has something that cannot be saved, by its argument. */
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments) {
    unsigned long context = 0;
    if (count < 2) return 2;
    if (!strcmp(arguments[1], "inotify") && inotify_init() < 0) return 3;
    if (!strcmp(arguments[1], "aio") && syscall(SYS_io_setup, 8, &context)) return 4;
    if (!strcmp(arguments[1], "pidfd") && syscall(SYS_pidfd_open, getpid(), 0) < 0) return 5;
    printf("ready\n");
    fflush(stdout);
    usleep(2000000);
    return 0;
}
