/* Has something that cannot be saved: inotify. */
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

int main(void) {
    if (inotify_init() < 0) return 2;
    printf("ready\n");
    fflush(stdout);
    usleep(3000000);
    return 0;
}
