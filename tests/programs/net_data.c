/* How bytes are sent and received: every call, with every shape of buffers, flags, limits of time, and wrong arguments. */
#define _GNU_SOURCE
#include "net.h"
#include <limits.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

enum { MIB = 1 << 20 };

/* Sizes that the compiler does not know: calls with those are checked at run time, by the names that end in _chk. */
static volatile size_t unknown[] = {1, 7, 4096};

static void end(int fd)
{
    EXPECT(shutdown(fd, SHUT_WR), 0);
    expect_end(fd);
    EXPECT(close(fd), 0);
}

/* Reads until n bytes are there, with a call that may return fewer. */
static void gather(int fd, size_t n, uint64_t seed, ssize_t (*take)(int, unsigned char *, size_t))
{
    static unsigned char buffer[65536];
    for (size_t done = 0; done < n;) {
        const size_t part = n - done < sizeof buffer ? n - done : sizeof buffer;
        const ssize_t got = MUST(take(fd, buffer, part));
        CHECK(got > 0 && (size_t)got <= part);
        check_filled(buffer, (size_t)got, seed, done);
        done += (size_t)got;
    }
}

static void scatter(int fd, size_t n, size_t step, uint64_t seed, ssize_t (*put)(int, unsigned char *, size_t))
{
    static unsigned char buffer[65536];
    for (size_t done = 0; done < n;) {
        const size_t part = n - done < step ? n - done : step;
        fill(buffer, part, seed, done);
        for (size_t at = 0; at < part;) {
            const ssize_t put_now = MUST(put(fd, buffer + at, part - at));
            CHECK(put_now > 0);
            at += (size_t)put_now;
        }
        done += part;
    }
}

static ssize_t by_send(int fd, unsigned char *bytes, size_t n)
{
    return send(fd, bytes, n, MSG_NOSIGNAL);
}

static ssize_t by_sendto(int fd, unsigned char *bytes, size_t n)
{
    return sendto(fd, bytes, n, MSG_NOSIGNAL, NULL, 0);
}

static ssize_t by_write(int fd, unsigned char *bytes, size_t n)
{
    return write(fd, bytes, n);
}

/* In three parts, the middle one empty. */
static int cut(struct iovec parts[3], unsigned char *bytes, size_t n)
{
    parts[0] = (struct iovec){bytes, n / 3};
    parts[1] = (struct iovec){bytes + n / 3, 0};
    parts[2] = (struct iovec){bytes + n / 3, n - n / 3};
    return 3;
}

static ssize_t by_writev(int fd, unsigned char *bytes, size_t n)
{
    struct iovec parts[3];
    return writev(fd, parts, cut(parts, bytes, n));
}

static ssize_t by_sendmsg(int fd, unsigned char *bytes, size_t n)
{
    struct iovec parts[3];
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)cut(parts, bytes, n)};
    return sendmsg(fd, &message, MSG_NOSIGNAL);
}

static ssize_t by_recv(int fd, unsigned char *bytes, size_t n)
{
    return recv(fd, bytes, n, 0);
}

/* On a connection there is no address to tell. */
static ssize_t by_recvfrom(int fd, unsigned char *bytes, size_t n)
{
    struct sockaddr_in from = {.sin_port = 77};
    socklen_t length = sizeof from;
    const ssize_t got = recvfrom(fd, bytes, n, 0, (struct sockaddr *)&from, &length);
    EXPECT(from.sin_port, 77);
    EXPECT(length, 0);
    return got;
}

static ssize_t by_read(int fd, unsigned char *bytes, size_t n)
{
    return read(fd, bytes, n);
}

static ssize_t by_readv(int fd, unsigned char *bytes, size_t n)
{
    struct iovec parts[3];
    return readv(fd, parts, cut(parts, bytes, n));
}

static ssize_t by_recvmsg(int fd, unsigned char *bytes, size_t n)
{
    struct iovec parts[3];
    struct sockaddr_in from;
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = parts, .msg_iovlen = (size_t)cut(parts, bytes, n)};
    message.msg_flags = -1;
    const ssize_t got = recvmsg(fd, &message, 0);
    EXPECT(message.msg_flags, 0);
    EXPECT(message.msg_namelen, 0);
    EXPECT(message.msg_controllen, 0);
    return got;
}

/* Every way to send meets every way to receive, in steps of several sizes. */
static void every_call(void)
{
    ssize_t (*const puts[])(int, unsigned char *, size_t) = {by_send, by_sendto, by_write, by_writev, by_sendmsg};
    ssize_t (*const takes[])(int, unsigned char *, size_t) = {by_recv, by_recvfrom, by_read, by_readv, by_recvmsg};
    static const size_t steps[] = {1, 13, 4096, 65536};
    const int fd = meet(), yes = 1;
    EXPECT(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), 0); /* Else much of the time is that of delayed answers. */
    uint64_t seed = 0;
    for (size_t p = 0; p < sizeof puts / sizeof *puts; p++)
        for (size_t t = 0; t < sizeof takes / sizeof *takes; t++)
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                const size_t step = steps[s], n = step * 10 + 5;
                seed++;
                if ((seed % 2 != 0) == (server != 0))
                    scatter(fd, n, step, seed, puts[p]);
                else
                    gather(fd, n, seed, takes[t]);
            }
    end(fd);
}

/* Vectors of 0, 1 and the most parts that the kernel takes; more are refused. */
static void vectors(void)
{
    static struct iovec parts[IOV_MAX + 1];
    static unsigned char bytes[IOV_MAX * 3], got[IOV_MAX * 3];
    const int fd = meet();
    EXPECT(writev(fd, parts, 0), 0);
    volatile int negative = -1;
    EXPECT_ERRNO(writev(fd, parts, negative), EINVAL);
    EXPECT_ERRNO(writev(fd, parts, IOV_MAX + 1), EINVAL);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = IOV_MAX + 1};
    EXPECT_ERRNO(sendmsg(fd, &message, MSG_NOSIGNAL), EMSGSIZE);
    message.msg_iovlen = 0;
    EXPECT(sendmsg(fd, &message, MSG_NOSIGNAL), 0);
    fill(bytes, sizeof bytes, 1, 0);
    /* Parts of 0 to 6 bytes. */
    size_t at = 0;
    for (int i = 0; i < IOV_MAX; i++) {
        const size_t length = (size_t)i % 7 < sizeof bytes - at ? (size_t)i % 7 : sizeof bytes - at;
        parts[i] = (struct iovec){(server ? bytes : got) + at, length};
        at += length;
    }
    if (server) {
        EXPECT(writev(fd, parts, IOV_MAX), at);
        message.msg_iovlen = IOV_MAX;
        EXPECT(sendmsg(fd, &message, MSG_NOSIGNAL), at);
        together();
    } else {
        together(); /* Now everything is there. */
        EXPECT_ERRNO(readv(fd, parts, IOV_MAX + 1), EINVAL);
        EXPECT(readv(fd, parts, 0), 0);
        EXPECT(readv(fd, parts, IOV_MAX), at);
        EXPECT(memcmp(got, bytes, at), 0);
        memset(got, 0, sizeof got);
        message.msg_iovlen = IOV_MAX;
        EXPECT(recvmsg(fd, &message, MSG_WAITALL), at);
        EXPECT(memcmp(got, bytes, at), 0);
    }
    end(fd);
}

static void many_messages(void)
{
    enum { N = 5 };
    static unsigned char bytes[N][100];
    struct mmsghdr messages[N];
    struct iovec parts[N];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < N; i++) {
        fill(bytes[i], sizeof bytes[i], 2, (uint64_t)i * sizeof bytes[i]);
        parts[i] = (struct iovec){bytes[i], sizeof bytes[i]};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    const int fd = meet();
    if (server) {
        EXPECT(sendmmsg(fd, messages, N, MSG_NOSIGNAL), N);
        for (int i = 0; i < N; i++)
            EXPECT(messages[i].msg_len, sizeof bytes[i]);
        together();
    } else {
        memset(bytes, 0, sizeof bytes);
        together();
        EXPECT(recvmmsg(fd, messages, N, MSG_WAITALL, NULL), N);
        for (int i = 0; i < N; i++)
            EXPECT(messages[i].msg_len, sizeof bytes[i]);
        check_filled(bytes[0], sizeof bytes, 2, 0);
        EXPECT_ERRNO(recvmmsg(fd, messages, N, MSG_DONTWAIT, NULL), EAGAIN);
    }
    together();
    end(fd);
}

/* What was looked at is still there. */
static void peek(void)
{
    const int fd = meet();
    unsigned char bytes[1000];
    if (server) {
        EXPECT(hear(), 1);
        send_pattern(fd, 300, 3);
        tell(2);
        EXPECT(hear(), 3);
        send_pattern(fd, 50, 4);
        EXPECT(close(fd), 0);
        return;
    }
    EXPECT_ERRNO(recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
    tell(1);
    EXPECT(recv(fd, bytes, 1, MSG_PEEK), 1); /* Waits for it. */
    EXPECT(hear(), 2);
    for (size_t n = 1; n <= 400; n += 57) {
        const size_t there = n < 300 ? n : 300;
        EXPECT(recv(fd, bytes, n, MSG_PEEK), there);
        check_filled(bytes, there, 3, 0);
    }
    struct iovec parts[3];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)cut(parts, bytes, 200)};
    memset(bytes, 0, sizeof bytes);
    EXPECT(recvmsg(fd, &message, MSG_PEEK), 200);
    check_filled(bytes, 200, 3, 0);
    EXPECT(recv(fd, bytes, 100, 0), 100);
    EXPECT(recv(fd, bytes, sizeof bytes, MSG_PEEK), 200);
    check_filled(bytes, 200, 3, 100);
    recv_whole(fd, bytes, 200);
    check_filled(bytes, 200, 3, 100);
    tell(3);
    EXPECT(recv(fd, bytes, 50, MSG_PEEK | MSG_WAITALL), 50);
    recv_pattern(fd, 50, 4);
    EXPECT(recv(fd, bytes, 1, MSG_PEEK), 0);
    EXPECT(recv(fd, bytes, 1, MSG_PEEK), 0);
    expect_end(fd);
    EXPECT(close(fd), 0);
}

static void wait_for_all(void)
{
    const int fd = meet();
    static unsigned char bytes[MIB];
    if (server) {
        for (size_t at = 0; at < 40000; at += 10000) { /* In pieces, with time between them. */
            fill(bytes, 10000, 5, at);
            send_whole(fd, bytes, 10000);
            pause_ms(20);
        }
        send_pattern(fd, MIB, 6);
        send_pattern(fd, 300, 7);
        EXPECT(close(fd), 0);
        return;
    }
    EXPECT(recv(fd, bytes, 20000, MSG_WAITALL), 20000);
    check_filled(bytes, 20000, 5, 0);
    struct iovec parts[3];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)cut(parts, bytes, 20000)};
    EXPECT(recvmsg(fd, &message, MSG_WAITALL), 20000);
    check_filled(bytes, 20000, 5, 20000);
    EXPECT(recv(fd, bytes, MIB, MSG_WAITALL), MIB);
    check_filled(bytes, MIB, 6, 0);
    EXPECT(recv(fd, bytes, 1000, MSG_WAITALL), 300); /* The end comes first. */
    check_filled(bytes, 300, 7, 0);
    EXPECT(recv(fd, bytes, 1000, MSG_WAITALL), 0);
    EXPECT(close(fd), 0);
}

/* As much as the connection takes without a reader, and then all of it is read. */
static void without_waiting(void)
{
    const int fd = meet();
    static unsigned char bytes[100000];
    if (!server) {
        EXPECT_ERRNO(recv(fd, bytes, 1, MSG_DONTWAIT), EAGAIN);
        together();
        const uint64_t n = hear();
        gather(fd, n, 8, by_recv);
        tell(n);
        expect_end(fd);
        EXPECT(close(fd), 0);
        return;
    }
    together();
    uint64_t n = 0;
    const uint64_t most = 1 << 30;
    ssize_t sent = 0;
    for (; sent != -1; n += sent == -1 ? 0 : (uint64_t)sent) {
        CHECK(n < most);
        fill(bytes, sizeof bytes, 8, n);
        sent = send(fd, bytes, sizeof bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    EXPECT(errno, EAGAIN);
    CHECK(n > 0);
    struct pollfd p = {fd, POLLOUT, 0};
    EXPECT(poll(&p, 1, 0), 0);
    tell(n);
    EXPECT(hear(), n);
    EXPECT(poll(&p, 1, SOON_MS), 1);
    EXPECT(p.revents, POLLOUT);
    EXPECT(close(fd), 0);
}

/* Nothing asked for, nothing done. */
static void zero_lengths(void)
{
    const int fd = meet();
    char byte = 1;
    EXPECT(send(fd, &byte, 0, MSG_NOSIGNAL), 0);
    EXPECT(write(fd, &byte, 0), 0);
    together();
    send_whole(fd, &byte, 1);
    CHECK(await(fd, POLLIN) & POLLIN);
    EXPECT(recv(fd, &byte, 0, 0), 0);
    EXPECT(read(fd, &byte, 0), 0);
    EXPECT(recv(fd, &byte, 1, 0), 1);
    end(fd);
}

static void set_limit(int fd, int name, long ms)
{
    const struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    EXPECT(setsockopt(fd, SOL_SOCKET, name, &limit, sizeof limit), 0);
    struct timeval got;
    socklen_t length = sizeof got;
    EXPECT(getsockopt(fd, SOL_SOCKET, name, &got, &length), 0);
    EXPECT(got.tv_sec, limit.tv_sec);
}

/* SO_RCVTIMEO and SO_SNDTIMEO: neither early nor much too late. */
static void limits_of_time(void)
{
    const int fd = meet();
    static unsigned char bytes[MIB];
    set_limit(fd, SO_RCVTIMEO, 150);
    for (int i = 0; i < 4; i++) {
        const int64_t before = now_ms();
        EXPECT_ERRNO(i % 2 ? read(fd, bytes, 10) : recv(fd, bytes, 10, i == 2 ? MSG_WAITALL : 0), EAGAIN);
        const int64_t took = now_ms() - before;
        if (took < 149 || took > 149 + 2 * SECOND_MS)
            FAIL("a limit of 150 ms took %lld", (long long)took);
    }
    together();
    set_limit(fd, SO_RCVTIMEO, 0);
    if (!server) {
        const uint64_t n = hear();
        gather(fd, n, 9, by_recv);
        end(fd);
        return;
    }
    set_limit(fd, SO_SNDTIMEO, 150);
    uint64_t n = 0;
    ssize_t sent = 0;
    for (; sent != -1; n += sent == -1 ? 0 : (uint64_t)sent) {
        CHECK(n < 1 << 30);
        fill(bytes, 65536, 9, n);
        sent = send(fd, bytes, 65536, MSG_NOSIGNAL);
    }
    EXPECT(errno, EAGAIN);
    tell(n);
    end(fd);
}

/* Both ways at once, more than all buffers together hold. */
static void both_ways(void)
{
    enum { N = 24 * MIB };
    const int fd = meet();
    static unsigned char out[70000], in[70000];
    EXPECT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    size_t sent = 0, got = 0;
    for (uint64_t i = 0; sent < N || got < N; i++) {
        struct pollfd p = {fd, (short)((sent < N ? POLLOUT : 0) | (got < N ? POLLIN : 0)), 0};
        EXPECT(poll(&p, 1, SOON_MS), 1);
        const size_t step = 1 + mix(i) % sizeof out;
        if (p.revents & POLLOUT) {
            const size_t part = N - sent < step ? N - sent : step;
            fill(out, part, 10 + (uint64_t)server, sent);
            const ssize_t done = send(fd, out, part, MSG_NOSIGNAL);
            CHECK(done > 0 || (done == -1 && errno == EAGAIN));
            sent += done > 0 ? (size_t)done : 0;
        }
        if (p.revents & POLLIN) {
            const ssize_t done = recv(fd, in, step, 0);
            CHECK(done > 0 || (done == -1 && errno == EAGAIN));
            check_filled(in, done > 0 ? (size_t)done : 0, 10 + !server, got);
            got += done > 0 ? (size_t)done : 0;
        }
    }
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    end(fd);
}

/* A sender that blocks until its reader, who takes its time, has made room. */
static void slow_reader(void)
{
    enum { N = 96 * MIB };
    const int fd = meet();
    static unsigned char bytes[MIB];
    for (size_t at = 0; at < N; at += sizeof bytes) {
        if (server) {
            memset(bytes, (int)(at >> 20) + 1, sizeof bytes);
            send_whole(fd, bytes, sizeof bytes);
            continue;
        }
        if (at % (N / 8) == 0)
            pause_ms(50);
        recv_whole(fd, bytes, sizeof bytes);
        for (size_t i = 0; i < sizeof bytes; i += 997)
            EXPECT(bytes[i], (unsigned char)((at >> 20) + 1));
    }
    end(fd);
}

static void there(void)
{
    const int fd = meet();
    int n = -1;
    EXPECT(ioctl(fd, FIONREAD, &n), 0);
    EXPECT(n, 0);
    together();
    if (server)
        send_pattern(fd, 1234, 12);
    together();
    if (!server) {
        EXPECT(ioctl(fd, FIONREAD, &n), 0);
        EXPECT(n, 1234);
        recv_pattern(fd, 1000, 12);
        EXPECT(ioctl(fd, FIONREAD, &n), 0);
        EXPECT(n, 234);
        unsigned char rest[234];
        recv_whole(fd, rest, sizeof rest);
        check_filled(rest, sizeof rest, 12, 1000);
    }
    end(fd);
}

/* Wrong arguments are told, and nothing is lost by them. */
static void wrong_arguments(void)
{
    const int fd = meet();
    char byte = 1, got = 0;
    void *volatile nowhere = (void *)8;
    EXPECT_ERRNO(send(fd, nowhere, 10, MSG_NOSIGNAL), EFAULT);
    EXPECT_ERRNO(write(fd, nowhere, 10), EFAULT);
    struct iovec wrong = {nowhere, 10};
    EXPECT_ERRNO(writev(fd, &wrong, 1), EFAULT);
    EXPECT_ERRNO(writev(fd, nowhere, 1), EFAULT);
    together();
    send_whole(fd, &byte, 1);
    CHECK(await(fd, POLLIN) & POLLIN);
    EXPECT_ERRNO(recv(fd, nowhere, 10, 0), EFAULT);
    EXPECT_ERRNO(readv(fd, &wrong, 1), EFAULT);
    EXPECT_ERRNO(recvmsg(fd, nowhere, 0), EFAULT);
    EXPECT(recv(fd, &got, 1, 0), 1);
    EXPECT(got, 1);
    EXPECT_ERRNO(send(-1, &byte, 1, 0), EBADF);
    EXPECT_ERRNO(recv(1 << 20, &byte, 1, 0), EBADF);
    end(fd);
}

static volatile sig_atomic_t alarms;

static void count_alarm(int number)
{
    (void)number;
    alarms++;
}

/* The program's own signals interrupt calls, or do not, as it has asked for; nothing else does. */
static void interrupted(void)
{
    const int fd = meet();
    char byte = 1;
    if (server) {
        EXPECT(hear(), 1);
        pause_ms(300);
        send_whole(fd, &byte, 1);
    } else {
        struct sigaction action = {.sa_handler = count_alarm};
        EXPECT(sigaction(SIGUSR2, &action, NULL), 0);
        timer_t timer;
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
        EXPECT(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
        const struct itimerspec in_50_ms = {.it_value = {0, 50000000}};
        EXPECT(timer_settime(timer, 0, &in_50_ms, NULL), 0);
        EXPECT_ERRNO(recv(fd, &byte, 1, 0), EINTR);
        EXPECT(alarms, 1);
        struct pollfd p = {fd, POLLIN, 0};
        EXPECT(timer_settime(timer, 0, &in_50_ms, NULL), 0);
        EXPECT_ERRNO(poll(&p, 1, SOON_MS), EINTR);
        action.sa_flags = SA_RESTART;
        EXPECT(sigaction(SIGUSR2, &action, NULL), 0);
        tell(1);
        EXPECT(timer_settime(timer, 0, &in_50_ms, NULL), 0);
        EXPECT(recv(fd, &byte, 1, 0), 1);
        EXPECT(alarms, 3);
        EXPECT(timer_delete(timer), 0);
    }
    end(fd);
}

/* The names that the compiler puts in with _FORTIFY_SOURCE, where it knows the buffer but not the length. */
static void fortified(void)
{
    const int fd = meet();
    unsigned char bytes[5000];
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        const size_t n = unknown[i];
        if (server) {
            for (uint64_t k = 0; k < 3; k++) {
                fill(bytes, n, 13 + k, 0);
                send_whole(fd, bytes, n);
                together();
                together();
            }
            continue;
        }
        together();
        EXPECT(read(fd, bytes, n), n);
        check_filled(bytes, n, 13, 0);
        together();
        together();
        EXPECT(recv(fd, bytes, n, 0), n);
        check_filled(bytes, n, 14, 0);
        together();
        together();
        struct pollfd p[2] = {{fd, POLLIN, 0}};
        const struct timespec second = {1, 0};
        EXPECT(poll(p, unknown[0], 0), 1);
        EXPECT(ppoll(p, unknown[0], &second, NULL), 1);
        EXPECT(recvfrom(fd, bytes, n, 0, NULL, NULL), n);
        check_filled(bytes, n, 15, 0);
        together();
    }
    end(fd);
}

/* A success leaves errno alone. */
static void errno_stays(void)
{
    const int fd = meet();
    char byte = 1;
    errno = 77;
    EXPECT(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    EXPECT(errno, 77);
    EXPECT(recv(fd, &byte, 1, 0), 1);
    EXPECT(errno, 77);
    struct pollfd p = {fd, POLLOUT, 0};
    EXPECT(poll(&p, 1, 0), 1);
    EXPECT(errno, 77);
    end(fd);
}

static int pattern_file(size_t n, uint64_t seed)
{
    static unsigned char bytes[MIB];
    char path[4096];
    snprintf(path, sizeof path, "%s/file", folder);
    CHECK(n <= sizeof bytes);
    fill(bytes, n, seed, 0);
    const int file = MUST(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    EXPECT(unlink(path), 0);
    EXPECT(write(file, bytes, n), n);
    EXPECT(lseek(file, 0, SEEK_SET), 0);
    return file;
}

static void from_a_file(void)
{
    enum { N = 300000 };
    const int fd = meet();
    if (server) {
        const int file = pattern_file(N, 16);
        off_t at = 0;
        while (at < 100000)
            CHECK(MUST(sendfile(fd, file, &at, 100000 - (size_t)at)) > 0);
        EXPECT(lseek(file, 0, SEEK_CUR), 0); /* With an offset of its own the file's stays. */
        EXPECT(lseek(file, 100000, SEEK_SET), 100000);
        for (ssize_t left = N - 100000, sent; left > 0; left -= sent)
            CHECK((sent = MUST(sendfile(fd, file, NULL, (size_t)left))) > 0);
        EXPECT(close(file), 0);
    } else {
        recv_pattern(fd, N, 16);
    }
    end(fd);
}

/* splice(), or what callers do when they are told that a descriptor cannot be spliced, as those of protected connections. */
static size_t move(int from, int to, size_t n)
{
    static unsigned char bytes[4096];
    const ssize_t moved = splice(from, NULL, to, NULL, n, 0);
    if (moved > 0)
        return (size_t)moved;
    EXPECT_ERRNO(moved, EINVAL);
    const ssize_t got = MUST(read(from, bytes, n < sizeof bytes ? n : sizeof bytes));
    CHECK(got > 0);
    EXPECT(write(to, bytes, (size_t)got), got);
    return (size_t)got;
}

static void by_splice(void)
{
    enum { N = 200000 };
    const int fd = meet();
    int ends[2];
    EXPECT(pipe(ends), 0);
    static unsigned char bytes[4096];
    for (size_t done = 0, part; done < N; done += part) {
        part = N - done < sizeof bytes ? N - done : sizeof bytes;
        if (server) {
            fill(bytes, part, 17, done);
            EXPECT(write(ends[1], bytes, part), part);
            for (size_t left = part; left > 0;)
                left -= move(ends[0], fd, left);
        } else {
            part = move(fd, ends[1], part);
            EXPECT(read(ends[0], bytes, part), part);
            check_filled(bytes, part, 17, done);
        }
    }
    EXPECT(close(ends[0]), 0);
    EXPECT(close(ends[1]), 0);
    end(fd);
}

/* glibc's own buffers around a connection. Special: it calls the kernel by names that nobody can take the place of. */
static void by_stdio(void)
{
    const int fd = meet();
    FILE *file = fdopen(fd, "r+");
    CHECK(file != NULL);
    char line[100];
    for (int i = 0; i < 100; i++) {
        if (server) {
            CHECK(fprintf(file, "line %d\n", i) > 0 && fflush(file) == 0);
        } else {
            char due[100];
            snprintf(due, sizeof due, "line %d\n", i);
            CHECK(fgets(line, sizeof line, file) != NULL);
            EXPECT(strcmp(line, due), 0);
        }
    }
    EXPECT(fclose(file), 0);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"every_call", every_call, 0},
        {"vectors", vectors, 0},
        {"many_messages", many_messages, 0},
        {"peek", peek, 0},
        {"wait_for_all", wait_for_all, 0},
        {"without_waiting", without_waiting, 0},
        {"zero_lengths", zero_lengths, 0},
        {"limits_of_time", limits_of_time, 0},
        {"both_ways", both_ways, 0},
        {"slow_reader", slow_reader, 0},
        {"there", there, 0},
        {"wrong_arguments", wrong_arguments, 0},
        {"interrupted", interrupted, 0},
        {"fortified", fortified, 0},
        {"errno_stays", errno_stays, 0},
        {"from_a_file", from_a_file, 0},
        {"by_splice", by_splice, 0},
        {"by_stdio", by_stdio, 1},
    };
    return RUN_CASES(tests);
}
