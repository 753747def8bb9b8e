/* What the programs without MPI share: two processes on TCP, a server and a client, which go through the same cases side by side.
 *
 *     PROGRAM server|client|rank DIR [CASE...]
 *
 * With `rank` the role is that of RADIC_RANK: rank 0 is the server. DIR is a directory, empty at the start, by which the client learns the
 * server's ports. Without a CASE all of those run that are not marked as special. Every case checks itself, on both sides: the first
 * mismatch is reported on stderr and ends the process with exit code 1, and then the other side's connections end, and it fails, too.
 * When all is well each side prints "OK PROGRAM SIDE N cases". Nothing in that depends on time.
 */
#ifndef RADIC_NET_H
#define RADIC_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { LIMIT_S = 120 /* for all cases together; a hang ends by SIGALRM */, SECOND_MS = 1000, SOON_MS = 10000 };

static int server;               /* whether this side is the server */
static const char *current = ""; /* the case */
static const char *folder;
static int listener, listener6 = -1, control;
static struct sockaddr_in server4;
static struct sockaddr_in6 server6;

__attribute__((format(printf, 3, 4), noreturn)) static inline void fail(const char *file, int line, const char *format, ...)
{
    const int error = errno;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "FAIL %s:%d %s, %s: ", file, line, current, server ? "server" : "client");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (errno %d: %s)\n", error, strerror(error));
    va_end(arguments);
    exit(1);
}

#define FAIL(...) fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                                                                                                   \
    do {                                                                                                                                   \
        if (!(condition))                                                                                                                  \
            FAIL("%s", #condition);                                                                                                        \
    } while (0)
/* A call, and what it has to return. */
#define EXPECT(call, value)                                                                                                                \
    do {                                                                                                                                   \
        const long long got_ = (long long)(call), due_ = (long long)(value);                                                               \
        if (got_ != due_)                                                                                                                  \
            FAIL("%s is %lld, not %lld", #call, got_, due_);                                                                               \
    } while (0)
/* A call that has to fail with this errno. */
#define EXPECT_ERRNO(call, code)                                                                                                           \
    do {                                                                                                                                   \
        const long long got_ = (long long)(call);                                                                                          \
        if (got_ != -1 || errno != (code))                                                                                                 \
            FAIL("%s is %lld, not -1 with %s", #call, got_, #code);                                                                        \
    } while (0)
/* A call that must not fail; its value. */
#define MUST(call)                                                                                                                         \
    ({                                                                                                                                     \
        const __typeof__(call) got_ = (call);                                                                                              \
        if (got_ == -1)                                                                                                                    \
            FAIL("%s failed", #call);                                                                                                      \
        got_;                                                                                                                              \
    })

/* A well mixed number that depends on every bit of x (the finalizer of splitmix64). */
static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The byte at a place of the stream with this seed. */
static inline unsigned char byte_at(uint64_t seed, uint64_t at)
{
    return (unsigned char)(mix(seed * 0x10001 + at / 8) >> (at % 8 * 8));
}

static inline void fill(unsigned char *bytes, size_t n, uint64_t seed, uint64_t from)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = byte_at(seed, from + i);
}

static inline void check_filled(const unsigned char *bytes, size_t n, uint64_t seed, uint64_t from)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != byte_at(seed, from + i))
            FAIL("byte %llu of stream %llu is wrong", (unsigned long long)(from + i), (unsigned long long)seed);
}

static inline int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline int64_t now_ms(void)
{
    return now_ns() / 1000000;
}

static inline void pause_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) == -1)
        CHECK(errno == EINTR);
}

/* Blocking transfers of whole buffers. */
static inline void send_whole(int fd, const void *bytes, size_t n)
{
    for (size_t done = 0; done < n;)
        done += (size_t)MUST(send(fd, (const char *)bytes + done, n - done, MSG_NOSIGNAL));
}

static inline void recv_whole(int fd, void *bytes, size_t n)
{
    for (size_t done = 0; done < n;) {
        const ssize_t got = MUST(recv(fd, (char *)bytes + done, n - done, 0));
        if (got == 0)
            FAIL("the stream ends %zu bytes early", n - done);
        done += (size_t)got;
    }
}

static inline void send_pattern(int fd, size_t n, uint64_t seed)
{
    unsigned char buffer[16384];
    for (size_t at = 0; at < n; at += sizeof buffer) {
        const size_t part = n - at < sizeof buffer ? n - at : sizeof buffer;
        fill(buffer, part, seed, at);
        send_whole(fd, buffer, part);
    }
}

static inline void recv_pattern(int fd, size_t n, uint64_t seed)
{
    unsigned char buffer[16384];
    for (size_t at = 0; at < n; at += sizeof buffer) {
        const size_t part = n - at < sizeof buffer ? n - at : sizeof buffer;
        recv_whole(fd, buffer, part);
        check_filled(buffer, part, seed, at);
    }
}

static inline void expect_end(int fd)
{
    char byte;
    EXPECT(recv(fd, &byte, 1, 0), 0);
}

/* Waits until poll says one of these events, and returns what it says. */
static inline int await(int fd, int events)
{
    struct pollfd p = {fd, (short)events, 0};
    EXPECT(poll(&p, 1, SOON_MS), 1);
    return p.revents;
}

/* Numbers for the other side, on the control connection. */
static inline void tell(uint64_t number)
{
    send_whole(control, &number, sizeof number);
}

static inline uint64_t hear(void)
{
    uint64_t number;
    recv_whole(control, &number, sizeof number);
    return number;
}

/* Neither side goes on before both are here. */
static inline void together(void)
{
    static uint64_t count;
    tell(++count);
    EXPECT(hear(), count);
}

static inline int tcp(int flags)
{
    return MUST(socket(AF_INET, SOCK_STREAM | flags, 0));
}

static inline int connect_to(const struct sockaddr_in *to)
{
    const int fd = tcp(0);
    EXPECT(connect(fd, (const struct sockaddr *)to, sizeof *to), 0);
    return fd;
}

/* A new connection between the two sides; each gets its end. */
static inline int meet(void)
{
    return server ? MUST(accept(listener, NULL, NULL)) : connect_to(&server4);
}

static inline struct sockaddr_in loopback(uint16_t port)
{
    const struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return address;
}

/* A listener at any port of an address; its port. */
static inline int listen_at(uint32_t address, int backlog, uint16_t *port)
{
    const int fd = tcp(0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    socklen_t length = sizeof at;
    EXPECT(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    EXPECT(listen(fd, backlog), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

static inline int listen_at_6(uint16_t *port)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t length = sizeof at;
    *port = 0;
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd == -1 || bind(fd, (struct sockaddr *)&at, sizeof at) == -1)
        return -1; /* A machine without IPv6. */
    EXPECT(listen(fd, 16), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    *port = ntohs(at.sin6_port);
    return fd;
}

static inline void publish(uint16_t port4, uint16_t port6)
{
    char temporary[4096], path[4096];
    snprintf(temporary, sizeof temporary, "%s/ports.new", folder);
    snprintf(path, sizeof path, "%s/ports", folder);
    FILE *file = fopen(temporary, "w");
    CHECK(file != NULL);
    fprintf(file, "%u %u\n", port4, port6);
    EXPECT(fclose(file), 0);
    EXPECT(rename(temporary, path), 0);
}

/* Leaves a file in the folder, for the test. */
static inline void put(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    EXPECT(close(MUST(open(path, O_CREAT | O_WRONLY, 0600))), 0);
}

static inline void find_server(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/ports", folder);
    unsigned port4 = 0, port6 = 0;
    for (int64_t deadline = now_ms() + SOON_MS; port4 == 0;) {
        FILE *file = fopen(path, "r");
        if (file != NULL) {
            EXPECT(fscanf(file, "%u %u", &port4, &port6), 2);
            fclose(file);
        } else {
            CHECK(now_ms() < deadline);
            pause_ms(5);
        }
    }
    server4 = loopback((uint16_t)port4);
    server6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT, .sin6_port = htons((uint16_t)port6)};
}

/* Reads the role and makes the listeners and the control connection. */
static inline void start(int argc, char **argv)
{
    const char *number = getenv("RADIC_RANK"), *role = argc > 2 ? argv[1] : "";
    if (strcmp(role, "rank") == 0 && number != NULL)
        role = strcmp(number, "0") == 0 ? "server" : "client";
    server = strcmp(role, "server") == 0;
    if (!server && strcmp(role, "client") != 0) {
        fprintf(stderr, "usage: %s server|client|rank DIR [CASE...]\n", argv[0]);
        exit(2);
    }
    folder = argv[2];
    current = "start";
    signal(SIGPIPE, SIG_IGN);
    alarm(LIMIT_S);
    if (server) {
        uint16_t port4, port6;
        listener = listen_at(INADDR_LOOPBACK, 128, &port4);
        listener6 = listen_at_6(&port6);
        publish(port4, port6);
        server4 = loopback(port4);
    } else {
        find_server();
    }
    control = meet();
}

struct test {
    const char *name;
    void (*run)(void);
    int special; /* runs only when it is asked for by name */
};

static inline int wanted(const struct test *test, int argc, char **argv)
{
    for (int i = 3; i < argc; i++)
        if (strcmp(argv[i], test->name) == 0)
            return 1;
    return argc <= 3 && !test->special;
}

static inline void check_names(const struct test *tests, size_t n, int argc, char **argv)
{
    for (int a = 3; a < argc; a++) {
        size_t i = 0;
        while (i < n && strcmp(argv[a], tests[i].name) != 0)
            i++;
        if (i == n) {
            fprintf(stderr, "%s: no case %s\n", argv[0], argv[a]);
            exit(2);
        }
    }
}

static inline int run_cases(const struct test *tests, size_t n, int argc, char **argv)
{
    start(argc, argv);
    check_names(tests, n, argc, argv);
    int count = 0;
    for (size_t i = 0; i < n; i++)
        if (wanted(&tests[i], argc, argv)) {
            together();
            current = tests[i].name;
            if (getenv("NET_VERBOSE") != NULL)
                fprintf(stderr, "%s %s\n", server ? "server" : "client", current);
            tests[i].run();
            count++;
        }
    const char *name = strrchr(argv[0], '/');
    printf("OK %s %s %d cases\n", name != NULL ? name + 1 : argv[0], server ? "server" : "client", count);
    return 0;
}

#define RUN_CASES(tests) run_cases(tests, sizeof(tests) / sizeof *(tests), argc, argv)

#endif
