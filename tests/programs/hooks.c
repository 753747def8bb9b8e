/* What a hook costs, by two processes on one TCP connection: hooks PORT [COUNT [ROUNDS]] under `radic run -n 2`, where the rank is that of RADIC_RANK; or
 * natively with RADIC_RANK=0 and RADIC_RANK=1 in two shells. Each figure is the median of ROUNDS (9) loops of COUNT (100000) calls, in nanoseconds a call,
 * the C program's loop and the call behind the hook included: what `--protect off` shows in turn is to be taken off. No MPI. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    LIMIT_S = 600,   /* for all of it; a hang ends by SIGALRM */
    MOST_ROUNDS = 99,
    BURST = 64,      /* messages that are sent before one is received */
    BURSTS = 32,     /* in a round */
    PAUSE_US = 2000  /* until a burst has come */
};

#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            fprintf(stderr, "FAIL %s:%d %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno));                     \
            exit(1);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

static int rank, connection, epoll, ends[2];
static long count = 100000, rounds = 9;
static char message[8];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void say(const char *what, double *times)
{
    qsort(times, (size_t)rounds, sizeof *times, by_time);
    printf("%-12s %7.1f ns (%.1f to %.1f)\n", what, times[rounds / 2], times[0], times[rounds - 1]);
}

/* Calls that find nothing. */
static void receive(void) { CHECK(recv(connection, message, sizeof message, 0) == -1); }
static void wait_epoll(void)
{
    struct epoll_event events[8];
    CHECK(epoll_wait(epoll, events, 8, 0) == 0);
}
static void wait_poll(void)
{
    struct pollfd entry = {.fd = connection, .events = POLLIN};
    CHECK(poll(&entry, 1, 0) == 0);
}
/* The same on a descriptor that is none of the library's. */
static void read_pipe(void) { CHECK(read(ends[0], message, sizeof message) == -1); }
static void read_clock(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
}

static void measure(const char *what, void (*call)(void))
{
    double times[MOST_ROUNDS];
    for (long round = 0; round < rounds; round++) {
        const double began = now();
        for (long i = 0; i < count; i++)
            call();
        times[round] = (now() - began) / (double)count;
    }
    say(what, times);
}

static void take_one(void) { CHECK(recv(connection, message, sizeof message, 0) == (ssize_t)sizeof message); }
static void send_one(void) { CHECK(send(connection, message, sizeof message, 0) == (ssize_t)sizeof message); }

/* As a library of MPI does: it asks the epoll until that says so. Where a peer was lost meanwhile there may be nothing all the same. */
static void await_one(void)
{
    struct epoll_event events[8];
    ssize_t got = -1;
    while (got == -1) {
        if (epoll_wait(epoll, events, 8, 0) > 0)
            got = recv(connection, message, sizeof message, 0);
        CHECK(got == (ssize_t)sizeof message || got == -1);
    }
}

/* Receives a burst that has come, as a rule. The time that this takes. */
static double take_burst(void)
{
    double took = 0;
    for (int taken = 0; taken < BURST;) {
        usleep(PAUSE_US);
        const double began = now();
        while (taken < BURST && recv(connection, message, sizeof message, 0) == (ssize_t)sizeof message)
            taken++;
        took += now() - began;
    }
    return took;
}

static double send_burst(void)
{
    const double began = now();
    for (int i = 0; i < BURST; i++)
        send_one();
    return now() - began;
}

/* Bursts from this rank to the other: `send` here, and `recv` there of what has come. */
static void measure_bursts(int sender)
{
    double times[MOST_ROUNDS];
    for (long round = 0; round < rounds; round++) {
        times[round] = 0;
        for (int burst = 0; burst < BURSTS; burst++) {
            times[round] += (rank == sender ? send_burst() : take_burst()) / (BURSTS * BURST);
            rank == sender ? await_one() : send_one();
        }
    }
    if (rank == 0)
        say(rank == sender ? "send" : "recv of 8 B", times);
}

static void measure_round_trips(void)
{
    double times[MOST_ROUNDS];
    const long trips = count / 10 + 1;
    for (long round = 0; round < rounds; round++) {
        const double began = now();
        for (long i = 0; i < trips; i++) {
            if (rank == 0)
                send_one();
            await_one();
            if (rank == 1)
                send_one();
        }
        times[round] = (now() - began) / (double)trips / 2;
    }
    if (rank == 0)
        say("half a trip", times);
}

static void connect_both(int port)
{
    const struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr *address = (const struct sockaddr *)&there;
    const int one = 1;
    int end = socket(AF_INET, SOCK_STREAM, 0);
    if (rank == 0) {
        CHECK(setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
        CHECK(bind(end, address, sizeof there) == 0 && listen(end, 1) == 0);
        connection = accept(end, NULL, NULL);
        CHECK(connection >= 0);
    } else {
        while (connect(end, address, sizeof there)) {
            close(end);
            usleep(10000);
            end = socket(AF_INET, SOCK_STREAM, 0);
        }
        connection = end;
    }
    CHECK(setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(fcntl(connection, F_SETFL, O_NONBLOCK) == 0);
    struct epoll_event readable = {.events = EPOLLIN};
    epoll = epoll_create1(0);
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &readable) == 0);
    CHECK(pipe2(ends, O_NONBLOCK) == 0);
}

int main(int argc, char **argv)
{
    const char *which = getenv("RADIC_RANK");
    const int port = argc > 1 ? atoi(argv[1]) : 0;
    count = argc > 2 ? atol(argv[2]) : count;
    rounds = argc > 3 ? atol(argv[3]) : rounds;
    if (!which || argc > 4 || port < 1 || port > 65535 || count < 1 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "hooks PORT [COUNT [ROUNDS]], at most %d rounds, as two ranks (RADIC_RANK is 0 or 1)\n", MOST_ROUNDS);
        return 2;
    }
    rank = atoi(which);
    alarm(LIMIT_S);
    connect_both(port);
    if (rank == 0) {
        measure("recv", receive);
        measure("epoll_wait", wait_epoll);
        measure("poll", wait_poll);
        measure("clock", read_clock);
        measure("read, a pipe", read_pipe);
        send_one();
    } else {
        struct pollfd entry = {.fd = connection, .events = POLLIN};
        CHECK(poll(&entry, 1, -1) == 1);
        take_one();
    }
    measure_bursts(0);
    measure_bursts(1);
    measure_round_trips();
    return 0;
}
