/* Asks by select, without waiting, all the time: selects SECONDS. It listens, so that its descriptors are protected ones. No MPI. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>

static time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

int main(int argc, char **argv)
{
    const struct sockaddr_in anywhere = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (argc != 2 || bind(listener, (const struct sockaddr *)&anywhere, sizeof anywhere) || listen(listener, 5))
        return 2;
    const time_t end = now() + atoi(argv[1]);
    long asked = 0;
    do {
        for (int i = 0; i < 1000; i++, asked++) {
            fd_set in;
            FD_ZERO(&in);
            FD_SET(listener, &in);
            struct timeval none = {0, 0};
            if (select(listener + 1, &in, NULL, NULL, &none))
                return 3;
        }
    } while (now() < end);
    printf("%ld\n", asked);
    return 0;
}
