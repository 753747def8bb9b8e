/* Who is ready: poll, select and epoll in all their shapes. */
#define _GNU_SOURCE
#include "net.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>

/* The other side is the one that sends, in every case: the client. */
static void end(int fd)
{
    EXPECT(shutdown(fd, SHUT_WR), 0);
    char bytes[64];
    ssize_t got;
    while ((got = MUST(recv(fd, bytes, sizeof bytes, 0))) > 0)
        ;
    EXPECT(close(fd), 0);
}

/* The server says when it wants n bytes more, and the client sends them. */
static void ask_for(uint64_t n)
{
    tell(n);
}

/* The client's part in most cases: it sends what it is asked for, until 0 is. */
static void serve(int fd)
{
    static const char bytes[10000];
    for (uint64_t n; (n = hear()) != 0;)
        send_whole(fd, bytes, n);
}

/* The server's end of a connection. The client does its part of the case here, and gets none. */
static int meet_client(void)
{
    const int fd = meet();
    if (server)
        return fd;
    serve(fd);
    end(fd);
    return -1;
}

static int add(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static int modify(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &event);
}

/* One event within the limit: its data as it was given, its events as expected. */
static void expect_event(int set, int limit_ms, uint32_t events, uint64_t data)
{
    struct epoll_event got[4];
    EXPECT(epoll_wait(set, got, 4, limit_ms), 1);
    EXPECT(got[0].events, events);
    CHECK(got[0].data.u64 == data);
}

static void expect_no_event(int set, int limit_ms)
{
    struct epoll_event got[4];
    EXPECT(epoll_wait(set, got, 4, limit_ms), 0);
}

static void drain(int fd, size_t n)
{
    char bytes[1000];
    for (size_t got = 0; got < n;)
        got += (size_t)MUST(recv(fd, bytes, n - got < sizeof bytes ? n - got : sizeof bytes, 0));
}

static void by_poll(void)
{
    const int fd = meet();
    if (!server) {
        serve(fd);
        EXPECT(shutdown(fd, SHUT_WR), 0);
        expect_end(fd);
        EXPECT(close(fd), 0);
        return;
    }
    struct pollfd p[3] = {{fd, POLLIN, 0}, {-1, POLLIN, 77}, {fd, POLLOUT, 0}};
    EXPECT(poll(p, 1, 0), 0);
    const int64_t before = now_ms();
    EXPECT(poll(p, 1, 60), 0);
    CHECK(now_ms() - before >= 60);
    EXPECT(p[0].revents, 0);
    EXPECT(poll(p, 3, -1), 1);
    EXPECT(p[0].revents, 0);
    EXPECT(p[1].revents, 0);
    EXPECT(p[2].revents, POLLOUT);
    ask_for(100);
    EXPECT(poll(p, 1, SOON_MS), 1);
    EXPECT(p[0].revents, POLLIN);
    EXPECT(poll(p, 3, 0), 2); /* It stays ready. */
    drain(fd, 100);
    EXPECT(poll(p, 1, 0), 0);
    EXPECT(poll(NULL, 0, 10), 0);
    const int closed = dup(fd);
    EXPECT(close(closed), 0);
    p[1] = (struct pollfd){closed, POLLIN, 0};
    EXPECT(poll(p, 3, SOON_MS), 2);
    EXPECT(p[1].revents, POLLNVAL);
    ask_for(0);
    p[0].events = POLLIN | POLLRDHUP;
    EXPECT(poll(p, 1, SOON_MS), 1);
    EXPECT(p[0].revents, POLLIN | POLLRDHUP);
    expect_end(fd);
    EXPECT(poll(p, 1, 0), 1); /* The end stays ready, too. */
    EXPECT(shutdown(fd, SHUT_WR), 0);
    p[0].events = 0;
    EXPECT(poll(p, 1, SOON_MS), 1);
    EXPECT(p[0].revents, POLLHUP);
    EXPECT(close(fd), 0);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* A signal that is blocked but for the time of the call. */
static void waiting_with_a_mask(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    struct sigaction action = {.sa_handler = count_signal};
    sigset_t blocked, before;
    EXPECT(sigaction(SIGUSR1, &action, NULL), 0);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    EXPECT(sigprocmask(SIG_BLOCK, &blocked, &before), 0);
    const int set = MUST(epoll_create(1));
    EXPECT(add(set, fd, EPOLLIN, 1), 0);
    const struct timespec soon = {10, 0}, never = {0, 0};
    struct epoll_event event;
    struct pollfd p = {fd, POLLIN, 0};
    fd_set in;
    for (int call = 0; call < 4; call++) {
        raise(SIGUSR1);
        EXPECT(signals, call);
        FD_ZERO(&in);
        FD_SET(fd, &in);
        switch (call) {
        case 0:
            EXPECT_ERRNO(ppoll(&p, 1, &soon, &before), EINTR);
            break;
        case 1:
            EXPECT_ERRNO(pselect(fd + 1, &in, NULL, NULL, &soon, &before), EINTR);
            break;
        case 2:
            EXPECT_ERRNO(epoll_pwait(set, &event, 1, SOON_MS, &before), EINTR);
            break;
        case 3:
            EXPECT_ERRNO(epoll_pwait2(set, &event, 1, &soon, &before), EINTR);
            break;
        }
        EXPECT(signals, call + 1);
    }
    EXPECT(ppoll(&p, 1, &never, NULL), 0);
    EXPECT(epoll_pwait2(set, &event, 1, &never, NULL), 0);
    ask_for(1);
    EXPECT(ppoll(&p, 1, NULL, &before), 1);
    EXPECT(epoll_pwait(set, &event, 1, -1, &before), 1);
    EXPECT(epoll_pwait2(set, &event, 1, NULL, &before), 1);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    EXPECT(pselect(fd + 1, &in, NULL, NULL, NULL, &before), 1);
    ask_for(0);
    EXPECT(sigprocmask(SIG_SETMASK, &before, NULL), 0);
    EXPECT(close(set), 0);
    end(fd);
}

static void by_select(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    fd_set in, out, special;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&special);
    FD_SET(fd, &in);
    FD_SET(control, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &special);
    struct timeval limit = {5, 0};
    EXPECT(select(fd + 1, &in, &out, &special, &limit), 1);
    CHECK(!FD_ISSET(fd, &in) && !FD_ISSET(control, &in) && FD_ISSET(fd, &out) && !FD_ISSET(fd, &special));
    CHECK(limit.tv_sec == 4 && limit.tv_usec > 0); /* Linux tells what is left. */
    FD_SET(fd, &in);
    limit = (struct timeval){0, 60000};
    const int64_t before = now_ms();
    EXPECT(select(fd + 1, &in, NULL, NULL, &limit), 0);
    CHECK(now_ms() - before >= 60 && !FD_ISSET(fd, &in) && limit.tv_sec == 0 && limit.tv_usec == 0);
    ask_for(10);
    FD_SET(fd, &in);
    EXPECT(select(fd + 1, &in, NULL, NULL, NULL), 1);
    CHECK(FD_ISSET(fd, &in));
    FD_SET(fd, &out);
    limit = (struct timeval){0, 0};
    EXPECT(select(fd + 1, &in, &out, NULL, &limit), 2); /* Bits are counted, not descriptors. */
    drain(fd, 10);
    const int closed = dup(fd);
    EXPECT(close(closed), 0);
    FD_ZERO(&in);
    FD_SET(closed, &in);
    EXPECT_ERRNO(select(closed + 1, &in, NULL, NULL, &limit), EBADF);
    ask_for(0);
    end(fd);
}

static void level(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    const int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    const uint64_t data = 0xfedcba9876543210;
    EXPECT(add(set, fd, EPOLLIN, data), 0);
    expect_no_event(set, 0);
    const int64_t before = now_ms();
    expect_no_event(set, 60);
    CHECK(now_ms() - before >= 60);
    ask_for(100);
    expect_event(set, SOON_MS, EPOLLIN, data);
    expect_event(set, 0, EPOLLIN, data);
    drain(fd, 60);
    expect_event(set, 0, EPOLLIN, data);
    drain(fd, 40);
    expect_no_event(set, 0);
    EXPECT(modify(set, fd, EPOLLIN | EPOLLOUT, 5), 0);
    expect_event(set, SOON_MS, EPOLLOUT, 5);
    ask_for(0); /* The client sends its end. */
    EXPECT(modify(set, fd, EPOLLIN | EPOLLRDHUP, 6), 0);
    expect_event(set, SOON_MS, EPOLLIN | EPOLLRDHUP, 6);
    expect_end(fd);
    EXPECT(shutdown(fd, SHUT_WR), 0);
    EXPECT(modify(set, fd, 0, 7), 0);
    expect_event(set, SOON_MS, EPOLLHUP, 7); /* Told even if nobody asks. */
    EXPECT(close(fd), 0);
    expect_no_event(set, 0); /* What is closed is not in the set any more. */
    EXPECT(close(set), 0);
}

/* An arrival is told once, whether anybody reads or not. */
static void edge(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    const int set = MUST(epoll_create1(0));
    EXPECT(add(set, fd, EPOLLIN | EPOLLET, 1), 0);
    expect_no_event(set, 0);
    for (int i = 0; i < 5; i++) {
        ask_for(100);
        expect_event(set, SOON_MS, EPOLLIN, 1);
        expect_no_event(set, 20);
        drain(fd, 30); /* The rest stays, and is not told again. */
        expect_no_event(set, 0);
    }
    drain(fd, 5 * 70);
    EXPECT(modify(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 2), 0); /* Changing it tells what is now. */
    expect_event(set, SOON_MS, EPOLLOUT, 2);
    expect_no_event(set, 20);
    ask_for(1);
    expect_event(set, SOON_MS, EPOLLIN | EPOLLOUT, 2); /* All that is, with what has come. */
    EXPECT(modify(set, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 3), 0);
    expect_event(set, SOON_MS, EPOLLIN, 3);
    ask_for(0);
    expect_event(set, SOON_MS, EPOLLIN | EPOLLRDHUP, 3);
    expect_no_event(set, 20);
    EXPECT(close(set), 0);
    end(fd);
}

/* The way of servers: on an edge, read until there is nothing; nothing may be forgotten. */
static void edge_stream(void)
{
    enum { N = 8 << 20 };
    const int fd = meet();
    static unsigned char bytes[30000];
    if (!server) {
        send_pattern(fd, N, 1);
        end(fd);
        return;
    }
    EXPECT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    const int set = MUST(epoll_create1(0));
    EXPECT(add(set, fd, EPOLLIN | EPOLLET | EPOLLRDHUP, 1), 0);
    size_t got = 0;
    for (int over = 0; !over;) {
        struct epoll_event event;
        EXPECT(epoll_wait(set, &event, 1, SOON_MS), 1);
        ssize_t n;
        while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0) {
            check_filled(bytes, (size_t)n, 1, got);
            got += (size_t)n;
        }
        CHECK(n == 0 || errno == EAGAIN);
        over = n == 0;
    }
    EXPECT(got, N);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    EXPECT(close(set), 0);
    end(fd);
}

/* An edge for room, after a send that found none. */
static void edge_for_room(void)
{
    const int fd = meet();
    static char bytes[100000];
    if (!server) {
        const uint64_t n = hear();
        for (uint64_t left = n; left > 0;)
            left -= (uint64_t)MUST(recv(fd, bytes, sizeof bytes, 0));
        tell(n);
        end(fd);
        return;
    }
    const int set = MUST(epoll_create1(0));
    EXPECT(add(set, fd, EPOLLOUT | EPOLLET, 1), 0);
    expect_event(set, SOON_MS, EPOLLOUT, 1);
    uint64_t n = 0;
    for (ssize_t sent; (sent = send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL)) != -1; n += (uint64_t)sent)
        CHECK(n < 1 << 30);
    EXPECT(errno, EAGAIN);
    expect_no_event(set, 0);
    tell(n);
    expect_event(set, SOON_MS, EPOLLOUT, 1);
    EXPECT(hear(), n);
    EXPECT(close(set), 0);
    end(fd);
}

static void oneshot(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    const int set = MUST(epoll_create1(0));
    EXPECT(add(set, fd, EPOLLIN | EPOLLONESHOT, 1), 0);
    ask_for(10);
    expect_event(set, SOON_MS, EPOLLIN, 1);
    expect_no_event(set, 0);
    ask_for(10);
    expect_no_event(set, 50);
    EXPECT(modify(set, fd, EPOLLIN | EPOLLONESHOT, 2), 0);
    expect_event(set, SOON_MS, EPOLLIN, 2);
    expect_no_event(set, 0);
    drain(fd, 20);
    EXPECT(modify(set, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 3), 0);
    expect_no_event(set, 20);
    ask_for(1);
    expect_event(set, SOON_MS, EPOLLIN, 3);
    expect_no_event(set, 0);
    ask_for(0);
    EXPECT(close(set), 0);
    end(fd);
}

/* A set in a set, and sets in poll and select. */
static void nested(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    const int inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    EXPECT(add(inner, fd, EPOLLIN, 1), 0);
    EXPECT(add(outer, inner, EPOLLIN, 2), 0);
    EXPECT_ERRNO(add(inner, outer, EPOLLIN, 3), ELOOP);
    struct pollfd p = {outer, POLLIN, 0};
    expect_no_event(outer, 0);
    EXPECT(poll(&p, 1, 0), 0);
    ask_for(10);
    expect_event(outer, SOON_MS, EPOLLIN, 2);
    expect_event(outer, 0, EPOLLIN, 2);
    EXPECT(poll(&p, 1, 0), 1);
    EXPECT(p.revents, POLLIN);
    p.fd = inner;
    EXPECT(poll(&p, 1, 0), 1);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(outer, &in);
    EXPECT(select(outer + 1, &in, NULL, NULL, &(struct timeval){0, 0}), 1);
    expect_event(inner, 0, EPOLLIN, 1);
    drain(fd, 10);
    expect_no_event(outer, 0);
    expect_no_event(inner, 0);
    EXPECT(poll(&p, 1, 0), 0);
    ask_for(1);
    p.fd = outer;
    EXPECT(poll(&p, 1, SOON_MS), 1); /* Waiting on the outer one sees the innermost. */
    ask_for(0);
    EXPECT(close(inner), 0);
    expect_no_event(outer, 0);
    EXPECT(close(outer), 0);
    end(fd);
}

static void wrong_sets(void)
{
    const int fd = meet(), set = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    EXPECT_ERRNO(epoll_create(0), EINVAL);
    EXPECT_ERRNO(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), ENOENT);
    EXPECT_ERRNO(modify(set, fd, EPOLLIN, 1), ENOENT);
    EXPECT(add(set, fd, EPOLLIN, 1), 0);
    EXPECT_ERRNO(add(set, fd, EPOLLIN, 1), EEXIST);
    EXPECT_ERRNO(add(set, set, EPOLLIN, 1), EINVAL);
    EXPECT_ERRNO(add(fd, set, EPOLLIN, 1), EINVAL);
    EXPECT_ERRNO(add(set, -1, EPOLLIN, 1), EBADF);
    EXPECT_ERRNO(epoll_ctl(set, 77, fd, &event), EINVAL);
    EXPECT_ERRNO(epoll_wait(set, &event, 0, 0), EINVAL);
    EXPECT_ERRNO(epoll_wait(fd, &event, 1, 0), EINVAL);
    EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event), 0);
    EXPECT_ERRNO(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event), ENOENT);
    EXPECT(close(set), 0);
    EXPECT_ERRNO(epoll_wait(set, &event, 1, 0), EBADF);
    end(fd);
}

/* The set knows a descriptor and what is behind it: a duplicate has an entry of its own, which stays when it is closed while another
 * descriptor of the same connection is open. */
static void duplicates_in_a_set(void)
{
    const int fd = meet_client();
    if (fd < 0)
        return;
    const int set = MUST(epoll_create1(0)), other = MUST(dup(fd));
    EXPECT(add(set, fd, EPOLLIN, 1), 0);
    EXPECT(add(set, other, EPOLLIN, 2), 0);
    ask_for(1);
    struct epoll_event events[4];
    CHECK(await(fd, POLLIN) & POLLIN);
    EXPECT(epoll_wait(set, events, 4, SOON_MS), 2);
    EXPECT(events[0].data.u64 + events[1].data.u64, 3);
    EXPECT(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), 0);
    expect_event(set, 0, EPOLLIN, 2);
    EXPECT(close(other), 0);
    expect_event(set, 0, EPOLLIN, 2);
    drain(fd, 1);
    expect_no_event(set, 0);
    ask_for(0);
    EXPECT(close(set), 0);
    end(fd);
}

/* One set for all: connections, listeners, pipes, unix sockets, counters, timers. */
static void all_kinds(void)
{
    const int fd = meet();
    if (!server) {
        const struct sockaddr_in to = loopback((uint16_t)hear());
        const int second = connect_to(&to);
        serve(fd);
        EXPECT(close(second), 0);
        end(fd);
        return;
    }
    uint16_t port;
    int pipes[2], pair[2];
    const int own = listen_at(INADDR_LOOPBACK, 4, &port), set = MUST(epoll_create1(0));
    const int counter = MUST(eventfd(0, EFD_NONBLOCK)), timer = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    EXPECT(pipe2(pipes, O_NONBLOCK), 0);
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    const int fds[] = {fd, own, counter, timer, pipes[0], pair[0]};
    enum { N = sizeof fds / sizeof *fds };
    for (uint64_t i = 0; i < N; i++)
        EXPECT(add(set, fds[i], EPOLLIN | (i % 2 ? EPOLLET : 0), i), 0);
    expect_no_event(set, 0);
    tell(port);
    expect_event(set, SOON_MS, EPOLLIN, 1);
    const uint64_t one = 1;
    EXPECT(write(counter, &one, 8), 8);
    expect_event(set, SOON_MS, EPOLLIN, 2);
    uint64_t got;
    EXPECT(read(counter, &got, 8), 8);
    const struct itimerspec soon = {.it_value = {0, 1000000}};
    EXPECT(timerfd_settime(timer, 0, &soon, NULL), 0);
    expect_event(set, SOON_MS, EPOLLIN, 3);
    EXPECT(write(pipes[1], "x", 1), 1);
    expect_event(set, SOON_MS, EPOLLIN, 4);
    char byte;
    EXPECT(read(pipes[0], &byte, 1), 1);
    EXPECT(write(pair[1], "x", 1), 1);
    expect_event(set, SOON_MS, EPOLLIN, 5);
    ask_for(10);
    expect_event(set, SOON_MS, EPOLLIN, 0);
    drain(fd, 10);
    expect_no_event(set, 0);
    const int second = MUST(accept(own, NULL, NULL));
    ask_for(0);
    for (int i = 1; i < N; i++)
        EXPECT(close(fds[i]), 0);
    EXPECT(close(pipes[1]), 0);
    EXPECT(close(pair[1]), 0);
    EXPECT(close(set), 0);
    EXPECT(close(second), 0);
    end(fd);
}

/* A connect that completes is an edge for room; a refused one an error. */
static void connecting(void)
{
    if (server) {
        uint16_t port;
        EXPECT(close(listen_at(INADDR_LOOPBACK, 1, &port)), 0);
        tell(port);
        const int fd = meet();
        CHECK(await(fd, POLLIN) & POLLIN);
        end(fd);
        return;
    }
    const int set = MUST(epoll_create1(0));
    const struct sockaddr_in nobody = loopback((uint16_t)hear());
    int fd = tcp(SOCK_NONBLOCK);
    EXPECT(add(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 1), 0);
    expect_event(set, SOON_MS, EPOLLOUT | EPOLLHUP, 1); /* What the kernel says of a socket that is not connected. */
    EXPECT_ERRNO(connect(fd, (const struct sockaddr *)&nobody, sizeof nobody), EINPROGRESS);
    expect_event(set, SOON_MS, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP, 1);
    EXPECT(close(fd), 0);
    fd = tcp(SOCK_NONBLOCK);
    EXPECT_ERRNO(connect(fd, (const struct sockaddr *)&server4, sizeof server4), EINPROGRESS);
    EXPECT(add(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 2), 0);
    expect_event(set, SOON_MS, EPOLLOUT, 2);
    expect_no_event(set, 20);
    int error = -1;
    socklen_t length = sizeof error;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    EXPECT(error, 0);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    EXPECT(close(set), 0);
    end(fd);
}

/* Many connections, few events at a time: nobody is forgotten. */
static void many(void)
{
    enum { N = 100, ROUNDS = 20 };
    int fds[N];
    for (int i = 0; i < N; i++)
        fds[i] = meet();
    if (server) {
        const int set = MUST(epoll_create1(0));
        int64_t counts[N] = {0}, sum = 0;
        for (uint64_t i = 0; i < N; i++)
            EXPECT(add(set, fds[i], EPOLLIN, i), 0);
        while (sum < N * ROUNDS) {
            struct epoll_event events[7];
            const int n = MUST(epoll_wait(set, events, 7, SOON_MS));
            CHECK(n > 0);
            for (int e = 0; e < n; e++) {
                const uint64_t i = events[e].data.u64;
                unsigned char bytes[4];
                CHECK(i < N);
                const ssize_t got = MUST(recv(fds[i], bytes, 1 + (size_t)(sum % 4), 0));
                for (ssize_t b = 0; b < got; b++)
                    EXPECT(bytes[b], counts[i]++);
                sum += got;
            }
        }
        EXPECT(close(set), 0);
        tell(1);
    } else {
        for (unsigned char round = 0; round < ROUNDS; round++)
            for (int i = 0; i < N; i++)
                send_whole(fds[i], &round, 1);
        EXPECT(hear(), 1);
    }
    for (int i = 0; i < N; i++)
        end(fds[i]);
}

/* The loop of MPI libraries: ask again and again without waiting, answer at once. */
static void busy(void)
{
    const int fd = meet();
    const int set = MUST(epoll_create1(0));
    EXPECT(add(set, fd, EPOLLIN, 1), 0);
    EXPECT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    unsigned char message[64], expected[64];
    for (uint64_t i = 0; i < 3000; i++) {
        fill(expected, sizeof expected, 3, i * 64);
        if (server)
            EXPECT(send(fd, expected, sizeof expected, MSG_NOSIGNAL), sizeof expected);
        for (size_t got = 0; got < sizeof message;) {
            struct epoll_event event;
            while (MUST(epoll_wait(set, &event, 1, 0)) == 0)
                sched_yield();
            got += (size_t)MUST(recv(fd, message + got, sizeof message - got, 0));
        }
        EXPECT(memcmp(message, expected, sizeof message), 0);
        if (!server)
            EXPECT(send(fd, message, sizeof message, MSG_NOSIGNAL), sizeof message);
    }
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    EXPECT(close(set), 0);
    end(fd);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"by_poll", by_poll, 0},
        {"waiting_with_a_mask", waiting_with_a_mask, 0},
        {"by_select", by_select, 0},
        {"level", level, 0},
        {"edge", edge, 0},
        {"edge_stream", edge_stream, 0},
        {"edge_for_room", edge_for_room, 0},
        {"oneshot", oneshot, 0},
        {"nested", nested, 0},
        {"wrong_sets", wrong_sets, 0},
        {"duplicates_in_a_set", duplicates_in_a_set, 0},
        {"all_kinds", all_kinds, 0},
        {"connecting", connecting, 0},
        {"many", many, 0},
        {"busy", busy, 0},
    };
    return RUN_CASES(tests);
}
