/* Many connections: opened and closed one after the other, or all at once. What they cost is printed, a line of JSON for each figure.
 *
 *     net_many server|client|rank DIR churn|live [N]
 *
 * churn: N times (1000) connect, a message each way, close. Memory, descriptors and time are told as they were after the first fifth and are in the end.
 * live: N connections (10000) are there at once; the time of calls is told with 10 of them and with all.
 */
#define _GNU_SOURCE
#include "net.h"
#include <dirent.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>

enum { FEW = 10, BATCHES = 7, MOST = 20000, BACKLOG = 64 };

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

static long resident_kib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    EXPECT(fscanf(file, "%*d %ld", &pages), 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    int n = 0;
    while (readdir(directory) != NULL)
        n++;
    closedir(directory);
    return n - 3; /* ., .. and the directory itself */
}

static void one_connection(uint64_t seed)
{
    const int fd = meet();
    if (server) {
        recv_pattern(fd, 100, seed);
        send_pattern(fd, 100, seed);
        expect_end(fd);
    } else {
        send_pattern(fd, 100, seed);
        recv_pattern(fd, 100, seed);
    }
    EXPECT(close(fd), 0);
}

static void churn(int n)
{
    int64_t *times = calloc((size_t)n, sizeof *times);
    CHECK(times != NULL);
    const int fifth = n / 5;
    long memory = 0;
    int open_then = 0;
    for (int i = 0; i < n; i++) {
        if (i == fifth) {
            memory = resident_kib();
            open_then = descriptors();
        }
        const int64_t before = now_ns();
        one_connection((uint64_t)i);
        times[i] = now_ns() - before;
    }
    together();
    printf("{\"side\":\"%s\",\"connections\":%d,\"grown_kib\":%ld,\"grown_fds\":%d,\"first_ns\":%lld,\"last_ns\":%lld}\n",
           server ? "server" : "client", n, resident_kib() - memory, descriptors() - open_then, (long long)median(times, fifth),
           (long long)median(times + n - fifth, fifth));
    free(times);
}

struct calls {
    int fd;  /* the connection that is used */
    int set; /* all of them, for epoll */
};

static void nothing_to_receive(const struct calls *with)
{
    char byte;
    EXPECT_ERRNO(recv(with->fd, &byte, 1, MSG_DONTWAIT), EAGAIN);
}

static void nobody_is_ready(const struct calls *with)
{
    struct epoll_event event;
    EXPECT(epoll_wait(with->set, &event, 1, 0), 0);
}

static void poll_of_one(const struct calls *with)
{
    struct pollfd p = {with->fd, POLLIN, 0};
    EXPECT(poll(&p, 1, 0), 0);
}

static void there_and_back(const struct calls *with)
{
    uint64_t number = 7;
    send_whole(with->fd, &number, sizeof number);
    recv_whole(with->fd, &number, sizeof number);
}

static void new_socket(const struct calls *with)
{
    (void)with;
    EXPECT(close(tcp(0)), 0);
}

static const struct {
    const char *name;
    void (*call)(const struct calls *);
    int times, echoed;
} measured[] = {
    {"recv_nothing", nothing_to_receive, 20000, 0},
    {"epoll_nothing", nobody_is_ready, 20000, 0},
    {"poll_nothing", poll_of_one, 20000, 0},
    {"round_trip", there_and_back, 500, 1},
    {"socket_close", new_socket, 2000, 0},
};

/* The server's part of a batch. */
static void echo(int fd, int times)
{
    for (int i = 0; i < times; i++) {
        uint64_t number;
        recv_whole(fd, &number, sizeof number);
        send_whole(fd, &number, sizeof number);
    }
}

/* The least over some batches: what the machine does beside makes a batch only longer. */
static void measure(const struct calls *with, int live)
{
    for (size_t m = 0; m < sizeof measured / sizeof *measured; m++) {
        int64_t least = INT64_MAX;
        for (int batch = 0; batch < BATCHES; batch++) {
            together();
            if (server) {
                if (measured[m].echoed)
                    echo(with->fd, measured[m].times);
                continue;
            }
            const int64_t before = now_ns();
            for (int i = 0; i < measured[m].times; i++)
                measured[m].call(with);
            const int64_t took = (now_ns() - before) / measured[m].times;
            least = took < least ? took : least;
        }
        if (!server)
            printf("{\"call\":\"%s\",\"live\":%d,\"ns\":%lld}\n", measured[m].name, live, (long long)least);
    }
}

static int join(int set)
{
    const int fd = meet(), yes = 1;
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), 0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    EXPECT(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), 0);
    return fd;
}

static void live(int n)
{
    struct rlimit limit;
    EXPECT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    EXPECT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (limit.rlim_max < (rlim_t)n + 100)
        FAIL("%d connections need more open files than the %llu allowed here", n, (unsigned long long)limit.rlim_max);
    int *fds = calloc((size_t)n, sizeof *fds);
    CHECK(fds != NULL);
    const int set = MUST(epoll_create1(0));
    const long memory = resident_kib();
    const int64_t before = now_ns();
    for (int i = 0; i < n; i++) {
        fds[i] = join(set);
        if (i % BACKLOG == 0)
            together(); /* More than the backlog holds would wait for the kernel's second attempt. */
        if (i + 1 == FEW)
            measure(&(struct calls){fds[0], set}, FEW);
    }
    printf("{\"side\":\"%s\",\"live\":%d,\"grown_kib\":%ld,\"seconds\":%.3f}\n", server ? "server" : "client", n, resident_kib() - memory,
           (double)(now_ns() - before) / 1e9);
    measure(&(struct calls){fds[0], set}, n);
    /* All of them work, the last as the first. */
    for (int i = 0; i < n; i++) {
        int number = i;
        if (!server)
            send_whole(fds[i], &number, sizeof number);
        else
            recv_whole(fds[i], &number, sizeof number);
        EXPECT(number, i);
    }
    together();
    for (int i = 0; i < n; i++)
        EXPECT(close(fds[i]), 0);
    EXPECT(close(set), 0);
    free(fds);
}

int main(int argc, char **argv)
{
    const char *what = argc > 3 ? argv[3] : "";
    const int churning = strcmp(what, "churn") == 0, n = argc > 4 ? atoi(argv[4]) : churning ? 1000 : 10000;
    if ((!churning && strcmp(what, "live") != 0) || n < 2 * FEW || n > MOST) {
        fprintf(stderr, "usage: %s server|client|rank DIR churn|live [%d to %d]\n", argv[0], 2 * FEW, MOST);
        return 2;
    }
    start(argc, argv);
    current = what;
    if (churning)
        churn(n);
    else
        live(n);
    printf("OK net_many %s %s %d\n", server ? "server" : "client", what, n);
    return 0;
}
