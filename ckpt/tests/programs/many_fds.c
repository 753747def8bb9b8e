/* Thousands of descriptors of every kind that one program has thousands of: eventfds, duplicates, pipes with content, sockets; an epoll that
 * watches them. Argument: how many, if so many are allowed. It looks at them when there is a file "go". */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(x)                                                    \
    do {                                                            \
        if (!(x)) {                                                 \
            printf("line %d, descriptor %d: %s\n", __LINE__, i, #x); \
            return 1;                                               \
        }                                                           \
    } while (0)

/* In each five: an eventfd, its duplicate, both ends of a pipe, a socket. */
enum { KINDS = 5 };

int main(int count, char **arguments) {
    int i = 0, n = count > 1 ? atoi(arguments[1]) / KINDS : 0, kept;
    struct rlimit limit;
    CHECK(n > 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    if ((rlim_t)n * KINDS + 100 > limit.rlim_max) n = (limit.rlim_max - 100) / KINDS;
    int (*fds)[KINDS] = calloc(n, sizeof *fds);
    int watching = epoll_create1(0);
    CHECK(fds && watching >= 0);
    for (i = 0; i < n; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        uint32_t number = i;
        CHECK((fds[i][0] = eventfd(i + 1, 0)) >= 0 && (fds[i][1] = dup(fds[i][0])) >= 0 && pipe(&fds[i][2]) == 0);
        CHECK(write(fds[i][3], &number, sizeof number) == sizeof number);
        CHECK((fds[i][4] = socket(AF_UNIX, SOCK_STREAM, 0)) >= 0);
        CHECK(epoll_ctl(watching, EPOLL_CTL_ADD, fds[i][0], &event) == 0);
    }
    printf("ready\n");
    fflush(stdout);
    while (access("go", F_OK) != 0) usleep(10000);
    for (i = 0; i < n; i++) {
        uint32_t number;
        uint64_t value;
        CHECK(eventfd_write(fds[i][1], 1000000) == 0 && eventfd_read(fds[i][0], &value) == 0 && value == i + 1000001u);
        CHECK(read(fds[i][2], &number, sizeof number) == sizeof number && number == (uint32_t)i);
        CHECK(getsockopt(fds[i][4], SOL_SOCKET, SO_TYPE, &kept, &(socklen_t){sizeof kept}) == 0 && kept == SOCK_STREAM);
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(watching, EPOLL_CTL_MOD, fds[i][0], &event) == 0);
    }
    printf("all there\n");
    return 0;
}
