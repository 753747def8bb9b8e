/* How connections begin and end: connect in every way, backlog, refusals, half-close, resets, addresses, families. */
#define _GNU_SOURCE
#include "net.h"
#include <netinet/tcp.h>
#include <sys/ioctl.h>

static uint16_t port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    EXPECT(name(fd, (struct sockaddr *)&address, &length), 0);
    EXPECT(length, sizeof address);
    EXPECT(ntohl(address.sin_addr.s_addr), INADDR_LOOPBACK);
    return ntohs(address.sin_port);
}

/* getsockname and getpeername have prototypes of their own with glibc's headers for C++ and GNU C. */
static int sock_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getsockname(fd, address, length);
}

static int peer_name(int fd, struct sockaddr *address, socklen_t *length)
{
    return getpeername(fd, address, length);
}

static int pending_error(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
}

/* Some bytes both ways, then both ends close. */
static void greet_and_close(int fd, uint64_t seed)
{
    if (server) {
        recv_pattern(fd, 5000, seed);
        send_pattern(fd, 300, seed + 1);
    } else {
        send_pattern(fd, 5000, seed);
        recv_pattern(fd, 300, seed + 1);
    }
    EXPECT(shutdown(fd, SHUT_WR), 0);
    expect_end(fd);
    EXPECT(close(fd), 0);
}

/* Both ends and accept() agree about who is who. */
static void addresses(void)
{
    int fd;
    if (server) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        fd = MUST(accept(listener, (struct sockaddr *)&from, &length));
        EXPECT(length, sizeof from);
        EXPECT(ntohs(from.sin_port), port_of(fd, peer_name));
        EXPECT(port_of(fd, sock_name), ntohs(server4.sin_port));
        EXPECT(hear(), ntohs(from.sin_port));
    } else {
        fd = connect_to(&server4);
        EXPECT(port_of(fd, peer_name), ntohs(server4.sin_port));
        tell(port_of(fd, sock_name));
    }
    greet_and_close(fd, 1);
}

/* Addresses are cut to the room that there is for them, and the full length is told. */
static void short_addresses(void)
{
    struct sockaddr_in whole;
    unsigned char part[6] = {0, 0, 0, 0, 0xaa, 0xaa};
    socklen_t length = 4;
    const int fd = server ? MUST(accept(listener, (struct sockaddr *)part, &length)) : meet();
    if (!server)
        EXPECT(getpeername(fd, (struct sockaddr *)part, &length), 0);
    EXPECT(length, sizeof whole);
    EXPECT(part[4], 0xaa);
    length = sizeof whole;
    EXPECT(getpeername(fd, (struct sockaddr *)&whole, &length), 0);
    EXPECT(memcmp(part, &whole, 4), 0);
    greet_and_close(fd, 2);
}

/* The first connect() after the connection is there tells that it is, the next one that it was. */
static void finish_connecting(int fd)
{
    CHECK(await(fd, POLLOUT) & POLLOUT);
    EXPECT(pending_error(fd), 0);
    EXPECT(connect(fd, (struct sockaddr *)&server4, sizeof server4), 0);
    EXPECT_ERRNO(connect(fd, (struct sockaddr *)&server4, sizeof server4), EISCONN);
    EXPECT(ntohs(server4.sin_port), port_of(fd, peer_name));
}

static void nonblocking_connect(void)
{
    int fd;
    if (server) {
        fd = meet();
    } else {
        fd = tcp(SOCK_NONBLOCK);
        EXPECT_ERRNO(connect(fd, (struct sockaddr *)&server4, sizeof server4), EINPROGRESS);
        finish_connecting(fd);
        char byte;
        EXPECT_ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
        EXPECT(fcntl(fd, F_SETFL, 0), 0);
    }
    greet_and_close(fd, 3);
}

/* As Open MPI does it. */
static void bind_then_connect(void)
{
    int fd;
    if (server) {
        fd = meet();
        EXPECT(hear(), port_of(fd, peer_name));
    } else {
        fd = tcp(0);
        const struct sockaddr_in any = loopback(0);
        EXPECT(bind(fd, (const struct sockaddr *)&any, sizeof any), 0);
        const uint16_t port = port_of(fd, sock_name);
        CHECK(port != 0);
        EXPECT(connect(fd, (struct sockaddr *)&server4, sizeof server4), 0);
        EXPECT(port_of(fd, sock_name), port);
        tell(port);
    }
    greet_and_close(fd, 4);
}

/* Nobody listens: a blocking connect says so, a non-blocking one by SO_ERROR, once. */
static void refused(void)
{
    if (server) {
        uint16_t port;
        const int fd = listen_at(INADDR_LOOPBACK, 1, &port);
        EXPECT(close(fd), 0);
        tell(port);
        EXPECT(hear(), port);
        return;
    }
    const uint16_t port = (uint16_t)hear();
    const struct sockaddr_in nobody = loopback(port);
    int fd = tcp(0);
    EXPECT_ERRNO(connect(fd, (const struct sockaddr *)&nobody, sizeof nobody), ECONNREFUSED);
    EXPECT(close(fd), 0);

    fd = tcp(SOCK_NONBLOCK);
    EXPECT_ERRNO(connect(fd, (const struct sockaddr *)&nobody, sizeof nobody), EINPROGRESS);
    const int events = await(fd, POLLIN | POLLOUT);
    CHECK((events & (POLLERR | POLLHUP)) == (POLLERR | POLLHUP));
    EXPECT(pending_error(fd), ECONNREFUSED);
    EXPECT(pending_error(fd), 0);
    EXPECT(close(fd), 0);
    tell(port);
}

/* A socket whose connect was refused may be used for another. */
static void refused_then_again(void)
{
    int fd;
    if (server) {
        uint16_t port;
        EXPECT(close(listen_at(INADDR_LOOPBACK, 1, &port)), 0);
        tell(port);
        fd = meet();
    } else {
        const struct sockaddr_in nobody = loopback((uint16_t)hear());
        fd = tcp(0);
        EXPECT_ERRNO(connect(fd, (const struct sockaddr *)&nobody, sizeof nobody), ECONNREFUSED);
        EXPECT(connect(fd, (struct sockaddr *)&server4, sizeof server4), 0);
    }
    greet_and_close(fd, 5);
}

static void not_connected(void)
{
    char byte = 0;
    const int fd = tcp(0);
    EXPECT_ERRNO(recv(fd, &byte, 1, 0), ENOTCONN);
    EXPECT_ERRNO(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    EXPECT_ERRNO(shutdown(fd, SHUT_WR), ENOTCONN);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    EXPECT_ERRNO(getpeername(fd, (struct sockaddr *)&address, &length), ENOTCONN);
    EXPECT_ERRNO(accept(fd, NULL, NULL), EINVAL);
    EXPECT(close(fd), 0);
    EXPECT_ERRNO(recv(fd, &byte, 1, 0), EBADF);
    EXPECT_ERRNO(close(fd), EBADF);
    const int file = MUST(open("/dev/null", O_RDWR));
    EXPECT_ERRNO(recv(file, &byte, 1, 0), ENOTSOCK);
    EXPECT(close(file), 0);
}

/* Each side connects to the other's listener at the same time, as MPICH's ranks do. */
static void simultaneous(void)
{
    uint16_t port;
    const int own = listen_at(INADDR_LOOPBACK, 4, &port);
    tell(port);
    const struct sockaddr_in other = loopback((uint16_t)hear());
    for (int round = 0; round < 20; round++) {
        together();
        const int out = tcp(SOCK_NONBLOCK);
        if (connect(out, (const struct sockaddr *)&other, sizeof other) == -1)
            EXPECT(errno, EINPROGRESS);
        CHECK(await(own, POLLIN) & POLLIN);
        const int in = MUST(accept(own, NULL, NULL));
        CHECK(await(out, POLLOUT) & POLLOUT);
        EXPECT(pending_error(out), 0);
        EXPECT(fcntl(out, F_SETFL, 0), 0);
        const uint64_t seed = 100 + (uint64_t)round * 2;
        send_pattern(out, 4000, seed + (uint64_t)server);
        recv_pattern(in, 4000, seed + !server);
        /* One of them is given up, in turn by the one or the other end. */
        EXPECT(shutdown(out, SHUT_RDWR), 0);
        EXPECT(close(out), 0);
        expect_end(in);
        EXPECT(close(in), 0);
    }
    EXPECT(close(own), 0);
}

/* Connections are there, and take bytes, before they are accepted; they come in the order in which they were opened. */
static void backlog(void)
{
    enum { N = 5 };
    if (server) {
        uint16_t port;
        const int own = listen_at(INADDR_LOOPBACK, N, &port);
        tell(port);
        EXPECT(hear(), N);
        CHECK(await(own, POLLIN) & POLLIN);
        for (uint64_t i = 0; i < N; i++) {
            const int fd = MUST(accept(own, NULL, NULL));
            recv_pattern(fd, 3000 + i, 200 + i);
            expect_end(fd);
            send_pattern(fd, 10, 300 + i);
            EXPECT(close(fd), 0);
        }
        EXPECT(close(own), 0);
        return;
    }
    const struct sockaddr_in to = loopback((uint16_t)hear());
    int fds[N];
    for (uint64_t i = 0; i < N; i++) {
        fds[i] = connect_to(&to);
        send_pattern(fds[i], 3000 + i, 200 + i);
        EXPECT(shutdown(fds[i], SHUT_WR), 0);
    }
    tell(N);
    for (uint64_t i = 0; i < N; i++) {
        recv_pattern(fds[i], 10, 300 + i);
        expect_end(fds[i]);
        EXPECT(close(fds[i]), 0);
    }
}

/* A client that is gone before it was accepted has connected all the same. */
static void closed_before_accept(void)
{
    if (server) {
        uint16_t port;
        const int own = listen_at(INADDR_LOOPBACK, 4, &port);
        tell(port);
        EXPECT(hear(), 1);
        const int fd = MUST(accept(own, NULL, NULL));
        recv_pattern(fd, 700, 6);
        expect_end(fd);
        EXPECT(close(fd), 0);
        EXPECT(close(own), 0);
        return;
    }
    const struct sockaddr_in to = loopback((uint16_t)hear());
    const int fd = connect_to(&to);
    send_pattern(fd, 700, 6);
    EXPECT(close(fd), 0);
    tell(1);
}

/* Connections that nobody has accepted end when their listener does. */
static void listener_closed(void)
{
    if (server) {
        uint16_t port;
        const int own = listen_at(INADDR_LOOPBACK, 4, &port);
        tell(port);
        EXPECT(hear(), 1);
        EXPECT(close(own), 0);
        tell(2);
        return;
    }
    const struct sockaddr_in to = loopback((uint16_t)hear());
    const int fd = connect_to(&to);
    tell(1);
    EXPECT(hear(), 2);
    char byte;
    const ssize_t got = recv(fd, &byte, 1, 0);
    CHECK(got == 0 || (got == -1 && errno == ECONNRESET));
    EXPECT(close(fd), 0);
    const int again = tcp(0);
    EXPECT_ERRNO(connect(again, (const struct sockaddr *)&to, sizeof to), ECONNREFUSED);
    EXPECT(close(again), 0);
}

static void accept_flags(void)
{
    if (server) {
        uint16_t port;
        const int own = listen_at(INADDR_LOOPBACK, 4, &port);
        EXPECT(fcntl(own, F_SETFL, O_NONBLOCK), 0);
        EXPECT_ERRNO(accept(own, NULL, NULL), EAGAIN);
        EXPECT_ERRNO(accept4(own, NULL, NULL, SOCK_CLOEXEC), EAGAIN);
        EXPECT_ERRNO(accept4(own, NULL, NULL, 0x40000000), EINVAL);
        tell(port);
        CHECK(await(own, POLLIN) & POLLIN);
        const int plain = MUST(accept(own, NULL, NULL));
        EXPECT(fcntl(plain, F_GETFL) & O_NONBLOCK, 0); /* A listener's flags are not inherited. */
        EXPECT(fcntl(plain, F_GETFD), 0);
        tell(1);
        CHECK(await(own, POLLIN) & POLLIN);
        const int flagged = MUST(accept4(own, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
        EXPECT(fcntl(flagged, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        EXPECT(fcntl(flagged, F_GETFD), FD_CLOEXEC);
        EXPECT(fcntl(flagged, F_SETFL, 0), 0);
        greet_and_close(plain, 10);
        greet_and_close(flagged, 20);
        EXPECT(close(own), 0);
        return;
    }
    const struct sockaddr_in to = loopback((uint16_t)hear());
    const int first = connect_to(&to);
    EXPECT(hear(), 1);
    const int second = connect_to(&to);
    greet_and_close(first, 10);
    greet_and_close(second, 20);
}

/* One direction ends, the other goes on. */
static void half_close(void)
{
    const int fd = meet();
    for (int turn = 0; turn < 2; turn++) {
        const int sender = turn == 0 ? !server : server;
        if (sender) {
            send_pattern(fd, 100000, (uint64_t)turn);
            EXPECT(shutdown(fd, SHUT_WR), 0);
            char byte = 0;
            EXPECT_ERRNO(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
        } else {
            recv_pattern(fd, 100000, (uint64_t)turn);
            expect_end(fd);
            expect_end(fd);
        }
    }
    EXPECT(close(fd), 0);
}

static void shut_both(void)
{
    const int fd = meet();
    char byte = 0;
    if (server) {
        recv_pattern(fd, 1000, 7);
        expect_end(fd);
        EXPECT(shutdown(fd, SHUT_RDWR), 0);
    } else {
        send_pattern(fd, 1000, 7);
        EXPECT(shutdown(fd, SHUT_RDWR), 0);
        EXPECT(recv(fd, &byte, 1, 0), 0);
        EXPECT_ERRNO(send(fd, &byte, 1, MSG_NOSIGNAL), EPIPE);
    }
    EXPECT_ERRNO(shutdown(fd, 77), EINVAL);
    EXPECT(close(fd), 0);
}

/* What this side does not want to read any more. */
static void shut_read(void)
{
    const int fd = meet();
    char byte = 0;
    if (server) {
        EXPECT(shutdown(fd, SHUT_RD), 0);
        EXPECT(recv(fd, &byte, 1, 0), 0);
        send_pattern(fd, 1000, 8);
    } else {
        recv_pattern(fd, 1000, 8);
    }
    together();
    EXPECT(close(fd), 0);
}

/* A side that does not want to read any more is no end of what the other one sends: that one goes on, and closes later. */
static void shut_read_and_go_on(void)
{
    const int fd = meet();
    char byte = 0;
    ssize_t got;
    if (server) {
        recv_pattern(fd, 100, 9);
        EXPECT(shutdown(fd, SHUT_RD), 0);
        EXPECT(recv(fd, &byte, 1, MSG_PEEK), 0);
        EXPECT(recv(fd, &byte, 1, 0), 0);
        together();
        /* What comes after that is there to be read, as ever. */
        while ((got = MUST(recv(fd, &byte, 1, MSG_PEEK))) == 0)
            pause_ms(1);
        recv_pattern(fd, 1000, 10);
        EXPECT(recv(fd, &byte, 1, 0), 0);
        together();
        together();
        EXPECT(recv(fd, &byte, 1, 0), 0);
        send_pattern(fd, 1000, 8);
    } else {
        send_pattern(fd, 100, 9);
        together();
        send_pattern(fd, 1000, 10);
        together();
        EXPECT(shutdown(fd, SHUT_WR), 0);
        together();
        recv_pattern(fd, 1000, 8);
    }
    together();
    EXPECT(close(fd), 0);
}

/* The end of a stream is found again by every call, whichever way it looks. */
static void the_end_is_found_again(void)
{
    const int fd = meet();
    char byte = 0;
    if (server) {
        recv_pattern(fd, 100, 9);
        for (int i = 0; i < 3; i++) {
            EXPECT(recv(fd, &byte, 1, MSG_PEEK), 0);
            EXPECT(recv(fd, &byte, 1, 0), 0);
            EXPECT(recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT), 0);
        }
        send_pattern(fd, 1000, 8);
    } else {
        send_pattern(fd, 100, 9);
        EXPECT(shutdown(fd, SHUT_WR), 0);
        recv_pattern(fd, 1000, 8);
        expect_end(fd);
        EXPECT(recv(fd, &byte, 1, MSG_PEEK), 0);
    }
    EXPECT(close(fd), 0);
}

/* Everything that was sent before close() arrives, however late it is read. */
static void close_with_bytes_under_way(void)
{
    const int fd = meet();
    const size_t n = 1 << 20;
    if (server) {
        const int64_t before = now_ms();
        EXPECT(hear(), 1);
        pause_ms(100);
        CHECK(now_ms() - before >= 100);
        recv_pattern(fd, n, 9);
        expect_end(fd);
    } else {
        tell(1);
        send_pattern(fd, n, 9);
    }
    EXPECT(close(fd), 0);
}

/* The same when the end of the connection was seen long ago: under protection, several checkpoints. */
static void peer_long_gone(void)
{
    const int fd = meet();
    if (!server) {
        expect_end(fd);
        EXPECT(poll(NULL, 0, SECOND_MS), 0);
        char byte = 'a';
        EXPECT(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
        ssize_t sent = 1;
        for (int64_t deadline = now_ms() + SOON_MS; sent != -1 && now_ms() < deadline;)
            sent = send(fd, &byte, 1, MSG_NOSIGNAL);
        CHECK(sent == -1 && (errno == EPIPE || errno == ECONNRESET));
    }
    EXPECT(close(fd), 0);
}

static volatile sig_atomic_t pipe_signals;

static void count_pipe_signal(int number)
{
    (void)number;
    pipe_signals++;
}

/* Sending to somebody who has gone: an error in the end, and SIGPIPE unless it is not wanted. */
static void peer_gone(void)
{
    const int fd = meet();
    if (server) {
        EXPECT(close(fd), 0);
        tell(1);
        return;
    }
    EXPECT(hear(), 1);
    expect_end(fd);
    static char bytes[4096];
    ssize_t sent = 0;
    for (int64_t deadline = now_ms() + SOON_MS; sent != -1 && now_ms() < deadline;)
        sent = send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    CHECK(sent == -1 && (errno == EPIPE || errno == ECONNRESET));
    struct sigaction action = {.sa_handler = count_pipe_signal}, before;
    EXPECT(sigaction(SIGPIPE, &action, &before), 0);
    EXPECT_ERRNO(send(fd, bytes, sizeof bytes, 0), EPIPE);
    EXPECT(pipe_signals, 1);
    EXPECT_ERRNO(write(fd, bytes, sizeof bytes), EPIPE);
    EXPECT(pipe_signals, 2);
    EXPECT(sigaction(SIGPIPE, &before, NULL), 0);
    EXPECT(close(fd), 0);
}

/* SO_LINGER with no time: the peer sees a reset, and loses what it has not read. A protected connection ends in order instead. */
static void reset(void)
{
    const int fd = meet();
    char byte = 1;
    if (server) {
        recv_whole(fd, &byte, 1);
        const struct linger hard = {1, 0};
        EXPECT(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard), 0);
        EXPECT(close(fd), 0);
        tell(1);
        return;
    }
    send_whole(fd, &byte, 1);
    EXPECT(hear(), 1);
    CHECK(await(fd, POLLIN) & (POLLIN | POLLERR));
    const ssize_t got = recv(fd, &byte, 1, 0);
    CHECK(got == 0 || (got == -1 && errno == ECONNRESET));
    EXPECT(recv(fd, &byte, 1, 0), 0); /* An error is told once. */
    EXPECT(close(fd), 0);
}

/* close() with unread bytes resets, too. */
static void close_unread(void)
{
    const int fd = meet();
    char byte = 1;
    if (server) {
        CHECK(await(fd, POLLIN) & POLLIN);
        EXPECT(close(fd), 0);
        tell(1);
        return;
    }
    send_whole(fd, &byte, 1);
    EXPECT(hear(), 1);
    const ssize_t got = recv(fd, &byte, 1, 0);
    CHECK(got == 0 || (got == -1 && errno == ECONNRESET));
    EXPECT(close(fd), 0);
}

/* A listener on every address; the connection has the one that was called. */
static void wildcard(void)
{
    if (server) {
        uint16_t port;
        const int own = listen_at(INADDR_ANY, 4, &port);
        tell(port);
        const int fd = MUST(accept(own, NULL, NULL));
        EXPECT(port_of(fd, sock_name), port);
        greet_and_close(fd, 11);
        EXPECT(close(own), 0);
        return;
    }
    const struct sockaddr_in to = loopback((uint16_t)hear());
    greet_and_close(connect_to(&to), 11);
}

static void ipv6(void)
{
    tell((uint64_t)(server ? listener6 != -1 : server6.sin6_port != 0));
    if (hear() == 0) {
        fprintf(stderr, "skipped: no IPv6 on the loopback interface\n");
        return;
    }
    struct sockaddr_in6 peer;
    socklen_t length = sizeof peer;
    int fd;
    if (server) {
        fd = MUST(accept(listener6, (struct sockaddr *)&peer, &length));
        EXPECT(hear(), ntohs(peer.sin6_port));
    } else {
        fd = MUST(socket(AF_INET6, SOCK_STREAM, 0));
        EXPECT(connect(fd, (struct sockaddr *)&server6, sizeof server6), 0);
        EXPECT(getsockname(fd, (struct sockaddr *)&peer, &length), 0);
        tell(ntohs(peer.sin6_port));
    }
    EXPECT(length, sizeof peer);
    EXPECT(peer.sin6_family, AF_INET6);
    CHECK(IN6_IS_ADDR_LOOPBACK(&peer.sin6_addr));
    greet_and_close(fd, 12);
}

/* A listener for both families sees IPv4 as mapped addresses. */
static void dual_stack(void)
{
    if (!server) {
        const uint16_t port = (uint16_t)hear();
        const struct sockaddr_in to = loopback(port);
        if (port != 0)
            greet_and_close(connect_to(&to), 13);
        return;
    }
    const int own = socket(AF_INET6, SOCK_STREAM, 0), no = 0;
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    socklen_t length = sizeof at;
    if (own == -1 || setsockopt(own, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == -1 ||
        bind(own, (struct sockaddr *)&at, sizeof at) == -1) {
        fprintf(stderr, "skipped: no IPv6\n");
        tell(0);
        return;
    }
    EXPECT(listen(own, 4), 0);
    EXPECT(getsockname(own, (struct sockaddr *)&at, &length), 0);
    tell(ntohs(at.sin6_port));
    struct sockaddr_in6 peer;
    length = sizeof peer;
    const int fd = MUST(accept(own, (struct sockaddr *)&peer, &length));
    EXPECT(peer.sin6_family, AF_INET6);
    CHECK(IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr));
    greet_and_close(fd, 13);
    EXPECT(close(own), 0);
}

static struct sockaddr_un unix_address(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(folder) + strlen(name) + 2 > sizeof address.sun_path)
        FAIL("%s is too long for the address of a unix socket", folder);
    memcpy(address.sun_path, folder, strlen(folder));
    strcat(strcat(address.sun_path, "/"), name);
    return address;
}

static void unix_stream(void)
{
    const struct sockaddr_un at = unix_address("stream");
    const int fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    if (server) {
        EXPECT(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
        EXPECT(listen(fd, 1), 0);
        tell(1);
        greet_and_close(MUST(accept(fd, NULL, NULL)), 14);
        EXPECT(close(fd), 0);
        EXPECT(unlink(at.sun_path), 0);
        return;
    }
    EXPECT(hear(), 1);
    EXPECT(connect(fd, (const struct sockaddr *)&at, sizeof at), 0);
    greet_and_close(fd, 14);
}

static void unix_datagram(void)
{
    const struct sockaddr_un at = unix_address("datagram");
    const int fd = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
    char bytes[10] = "datagram", got[20];
    if (server) {
        EXPECT(bind(fd, (const struct sockaddr *)&at, sizeof at), 0);
        tell(1);
        EXPECT(recv(fd, got, sizeof got, 0), sizeof bytes);
        EXPECT(memcmp(got, bytes, sizeof bytes), 0);
        EXPECT(unlink(at.sun_path), 0);
    } else {
        EXPECT(hear(), 1);
        EXPECT(sendto(fd, bytes, sizeof bytes, 0, (const struct sockaddr *)&at, sizeof at), sizeof bytes);
    }
    EXPECT(close(fd), 0);
}

static void udp(void)
{
    const int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in at = loopback(0), from;
    socklen_t length = sizeof at;
    EXPECT(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)&at, &length), 0);
    tell(ntohs(at.sin_port));
    const struct sockaddr_in to = loopback((uint16_t)hear());
    char bytes[100], got[200];
    fill((unsigned char *)bytes, sizeof bytes, 15, 0);
    EXPECT(sendto(fd, bytes, sizeof bytes, 0, (const struct sockaddr *)&to, sizeof to), sizeof bytes);
    CHECK(await(fd, POLLIN) & POLLIN);
    EXPECT(recvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&from, &length), sizeof bytes);
    EXPECT(from.sin_port, to.sin_port);
    EXPECT(memcmp(got, bytes, sizeof bytes), 0);
    together();
    EXPECT(close(fd), 0);
}

static void set_and_get(int fd, int level, int name, int value)
{
    int got = -1;
    socklen_t length = sizeof got;
    EXPECT(setsockopt(fd, level, name, &value, sizeof value), 0);
    EXPECT(getsockopt(fd, level, name, &got, &length), 0);
    CHECK(got == value || (name == SO_RCVBUF && got == 2 * value)); /* The kernel doubles it. */
}

static int get(int fd, int name)
{
    int got = -1;
    socklen_t length = sizeof got;
    EXPECT(getsockopt(fd, SOL_SOCKET, name, &got, &length), 0);
    return got;
}

static void options(void)
{
    const int fd = meet();
    set_and_get(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_and_get(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_and_get(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
    set_and_get(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_and_get(fd, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_and_get(fd, SOL_SOCKET, SO_RCVBUF, 100000);
    EXPECT(get(fd, SO_TYPE), SOCK_STREAM);
    EXPECT(get(fd, SO_DOMAIN), AF_INET);
    EXPECT(get(fd, SO_PROTOCOL), IPPROTO_TCP);
    EXPECT(get(fd, SO_ACCEPTCONN), 0);
    if (server)
        EXPECT(get(listener, SO_ACCEPTCONN), 1);
    EXPECT_ERRNO(setsockopt(fd, SOL_SOCKET, 7777, &server, sizeof server), ENOPROTOOPT);
    greet_and_close(fd, 16);
}

/* A process that calls itself: both ends are its own. */
static void to_itself(void)
{
    uint16_t port;
    const int own = listen_at(INADDR_LOOPBACK, 4, &port);
    const struct sockaddr_in to = loopback(port);
    const int out = tcp(SOCK_NONBLOCK);
    if (connect(out, (const struct sockaddr *)&to, sizeof to) == -1)
        EXPECT(errno, EINPROGRESS);
    const int in = MUST(accept(own, NULL, NULL));
    CHECK(await(out, POLLOUT) & POLLOUT);
    EXPECT(pending_error(out), 0);
    EXPECT(fcntl(out, F_SETFL, 0), 0);
    EXPECT(port_of(out, sock_name), port_of(in, peer_name));
    for (uint64_t i = 0; i < 50; i++) {
        send_pattern(out, 1000, i);
        recv_pattern(in, 1000, i);
        send_pattern(in, 10, i);
        recv_pattern(out, 10, i);
    }
    EXPECT(close(out), 0);
    expect_end(in);
    EXPECT(close(in), 0);
    EXPECT(close(own), 0);
}

/* A port that was used a moment ago. */
static void same_port_again(void)
{
    uint16_t port = 0;
    for (int round = 0; round < 3; round++) {
        if (!server) {
            const struct sockaddr_in to = loopback((uint16_t)hear());
            greet_and_close(connect_to(&to), 17);
            EXPECT(hear(), 1);
            continue;
        }
        const int own = tcp(0), yes = 1;
        struct sockaddr_in at = loopback(port);
        socklen_t length = sizeof at;
        EXPECT(setsockopt(own, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
        EXPECT(bind(own, (struct sockaddr *)&at, sizeof at), 0);
        EXPECT(getsockname(own, (struct sockaddr *)&at, &length), 0);
        CHECK(port == 0 || port == ntohs(at.sin_port));
        port = ntohs(at.sin_port);
        EXPECT(listen(own, 4), 0);
        tell(port);
        greet_and_close(MUST(accept(own, NULL, NULL)), 17);
        EXPECT(close(own), 0);
        tell(1);
    }
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"addresses", addresses, 0},
        {"short_addresses", short_addresses, 0},
        {"nonblocking_connect", nonblocking_connect, 0},
        {"bind_then_connect", bind_then_connect, 0},
        {"refused", refused, 0},
        {"refused_then_again", refused_then_again, 0},
        {"not_connected", not_connected, 0},
        {"simultaneous", simultaneous, 0},
        {"backlog", backlog, 0},
        {"closed_before_accept", closed_before_accept, 0},
        {"listener_closed", listener_closed, 0},
        {"accept_flags", accept_flags, 0},
        {"half_close", half_close, 0},
        {"shut_both", shut_both, 0},
        {"shut_read", shut_read, 0},
        {"shut_read_and_go_on", shut_read_and_go_on, 0},
        {"the_end_is_found_again", the_end_is_found_again, 0},
        {"close_with_bytes_under_way", close_with_bytes_under_way, 0},
        {"peer_gone", peer_gone, 0},
        {"peer_long_gone", peer_long_gone, 0},
        {"reset", reset, 0},
        {"close_unread", close_unread, 0},
        {"wildcard", wildcard, 0},
        {"ipv6", ipv6, 0},
        {"dual_stack", dual_stack, 0},
        {"unix_stream", unix_stream, 0},
        {"unix_datagram", unix_datagram, 0},
        {"udp", udp, 0},
        {"options", options, 0},
        {"to_itself", to_itself, 0},
        {"same_port_again", same_port_again, 0},
    };
    return RUN_CASES(tests);
}
