/* Calls to a listener whose backlog is full: those that do not wait are under way until the server accepts, and the time that the program gives them is its own. The cases are those of
 * net.h. `dies` is special: it is for a test that kills the one side or the other while calls are under way, and goes on when there is a file DIR/go.
 */
#define _GNU_SOURCE
#include "net.h"
#include <sys/epoll.h>

enum {
    BACKLOG = 1,
    FULL = BACKLOG + 1, /* Linux lets one more in */
    CALLS = 6,
    AT_ONCE_MS = 500,
    LIMIT_MS = 400,
    NOT_YET_MS = 600
};

/* A listener that is full in a moment; the client's address of it. */
static int full_listener(struct sockaddr_in *to)
{
    if (server) {
        uint16_t port;
        const int own = listen_at(INADDR_LOOPBACK, BACKLOG, &port);
        tell(port);
        return own;
    }
    *to = loopback((uint16_t)hear());
    return -1;
}

/* A call that does not wait; it says so at once, whatever becomes of it. */
static int call(const struct sockaddr_in *to)
{
    const int fd = tcp(SOCK_NONBLOCK);
    const int64_t begin = now_ms();
    EXPECT_ERRNO(connect(fd, (const struct sockaddr *)to, sizeof *to), EINPROGRESS);
    CHECK(now_ms() - begin < AT_ONCE_MS);
    return fd;
}

static int pending_error(int fd)
{
    int error = -1;
    socklen_t length = sizeof error;
    EXPECT(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    return error;
}

static int poll_once(int fd, int events, int ms)
{
    struct pollfd p = {fd, (short)events, 0};
    return MUST(poll(&p, 1, ms)) ? p.revents : 0;
}

/* The call is under way, and the program's time for it holds. */
static void is_under_way(int fd, const struct sockaddr_in *to)
{
    char byte = 0;
    const int64_t begin = now_ms();
    EXPECT(poll_once(fd, POLLIN | POLLOUT, LIMIT_MS), 0);
    const int64_t took = now_ms() - begin;
    CHECK(took >= LIMIT_MS && took < LIMIT_MS + AT_ONCE_MS);
    EXPECT_ERRNO(connect(fd, (const struct sockaddr *)to, sizeof *to), EALREADY);
    EXPECT_ERRNO(send(fd, &byte, 1, MSG_NOSIGNAL), EAGAIN);
    EXPECT_ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    EXPECT(pending_error(fd), 0);
}

/* The server answers a number with the same number mixed. */
static void answer_one(int fd, uint64_t *sum)
{
    uint64_t number;
    recv_whole(fd, &number, sizeof number);
    *sum += number;
    number = mix(number);
    send_whole(fd, &number, sizeof number);
}

/* The server answers what each client of a listener sends, in the order in which they come. It waits for the end of none before all have their answers. */
static void answer(int own, int clients, uint64_t *sum)
{
    int fds[CALLS];
    CHECK(clients <= CALLS);
    for (int i = 0; i < clients; i++) {
        CHECK(await(own, POLLIN) & POLLIN);
        fds[i] = MUST(accept(own, NULL, NULL));
        answer_one(fds[i], sum);
    }
    for (int i = 0; i < clients; i++) {
        expect_end(fds[i]);
        EXPECT(close(fds[i]), 0);
    }
}

/* Calls that wait for room come to their connections in any order: their first packets are sent again by timers, perhaps of several processors. So the client must not wait for the answer to
 * one while the server waits for what the client has to say on another. It says it in one packet: where the kernel answers calls by SYN cookies, as it does when a backlog is this small, it
 * resets a connection whose first packet found no room and whose second one does (the cookie is of the first one's sequence number). */
static void say(int fd, uint64_t number)
{
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    send_whole(fd, &number, sizeof number);
}

static void hear_answer(int fd, uint64_t number)
{
    uint64_t got;
    recv_whole(fd, &got, sizeof got);
    EXPECT(got, mix(number));
    EXPECT(close(fd), 0);
}

static void ask(int fd, uint64_t number)
{
    say(fd, number);
    hear_answer(fd, number);
}

/* Nobody else comes. */
static void is_empty(int own)
{
    EXPECT(poll_once(own, POLLIN, LIMIT_MS), 0);
}

/* Some of the calls are given up, the others get their connections when there is room. */
static void given_up(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    uint64_t sum = 0;
    if (server) {
        EXPECT(hear(), CALLS);
        answer(own, CALLS - 2, &sum);
        EXPECT(sum, 0 + 1 + 2 + 4);
        is_empty(own);
        EXPECT(close(own), 0);
        tell(1);
        return;
    }
    int fds[CALLS];
    for (int i = 0; i < CALLS; i++)
        fds[i] = call(&to);
    for (int i = 0; i < FULL; i++)
        CHECK(await(fds[i], POLLOUT) & POLLOUT);
    for (int i = FULL; i < CALLS; i++)
        is_under_way(fds[i], &to);
    EXPECT(close(fds[3]), 0);
    EXPECT(close(fds[5]), 0);
    tell(CALLS);
    for (int i = 0; i < CALLS; i++)
        if (i != 3 && i != 5) {
            EXPECT(await(fds[i], POLLOUT), POLLOUT);
            EXPECT(pending_error(fds[i]), 0);
            say(fds[i], (uint64_t)i);
        }
    for (int i = 0; i < CALLS; i++)
        if (i != 3 && i != 5)
            hear_answer(fds[i], (uint64_t)i);
    EXPECT(hear(), 1);
}

/* The same by an epoll that reports edges. */
static void edges(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    uint64_t sum = 0;
    if (server) {
        EXPECT(hear(), CALLS);
        answer(own, CALLS, &sum);
        EXPECT(sum, CALLS * (CALLS - 1) / 2);
        EXPECT(close(own), 0);
        return;
    }
    const int epoll = MUST(epoll_create1(0));
    struct epoll_event event;
    int fds[CALLS], done = 0;
    for (int i = 0; i < CALLS; i++) {
        fds[i] = call(&to);
        event = (struct epoll_event){.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = (uint32_t)i};
        EXPECT(epoll_ctl(epoll, EPOLL_CTL_ADD, fds[i], &event), 0);
    }
    for (; done < FULL; done++)
        EXPECT(epoll_wait(epoll, &event, 1, SOON_MS), 1);
    EXPECT(epoll_wait(epoll, &event, 1, NOT_YET_MS), 0);
    tell(CALLS);
    for (int i = 0; i < FULL; i++)
        ask(fds[i], (uint64_t)i);
    for (; done < CALLS; done++) {
        EXPECT(epoll_wait(epoll, &event, 1, SOON_MS), 1);
        EXPECT(event.events, EPOLLOUT);
        EXPECT(epoll_ctl(epoll, EPOLL_CTL_DEL, fds[event.data.u32], NULL), 0);
        say(fds[event.data.u32], event.data.u32);
    }
    for (int i = FULL; i < CALLS; i++)
        hear_answer(fds[i], (uint64_t)i);
    EXPECT(close(epoll), 0);
}

/* The server speaks first, and the client waits for nothing else. */
static void server_first(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    if (server) {
        EXPECT(hear(), FULL + 1);
        for (uint64_t i = 0; i <= FULL; i++) {
            const int fd = MUST(accept(own, NULL, NULL));
            send_pattern(fd, 1000, 400);
            expect_end(fd);
            EXPECT(close(fd), 0);
        }
        EXPECT(close(own), 0);
        return;
    }
    int fds[FULL + 1];
    for (int i = 0; i <= FULL; i++)
        fds[i] = call(&to);
    tell(FULL + 1);
    for (int i = 0; i <= FULL; i++) {
        CHECK(await(fds[i], POLLIN) & POLLIN);
        EXPECT(fcntl(fds[i], F_SETFL, 0), 0);
        recv_pattern(fds[i], 1000, 400);
        EXPECT(close(fds[i]), 0);
    }
}

/* A client that makes no call while its connection comes keeps no server in its accept. */
static void busy_client(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    uint64_t sum = 0;
    if (server) {
        EXPECT(hear(), FULL + 1);
        EXPECT(fcntl(own, F_SETFL, O_NONBLOCK), 0);
        int fds[FULL + 1], count = 0;
        for (const int64_t deadline = now_ms() + SOON_MS; count <= FULL;) {
            const int64_t begin = now_ms();
            const int fd = accept(own, NULL, NULL);
            CHECK(now_ms() - begin < AT_ONCE_MS && now_ms() < deadline);
            if (fd != -1)
                fds[count++] = fd;
            else
                EXPECT(errno, EAGAIN);
            poll_once(own, POLLIN, 10);
        }
        for (int i = 0; i < count; i++) {
            answer_one(fds[i], &sum);
            expect_end(fds[i]);
            EXPECT(close(fds[i]), 0);
        }
        EXPECT(sum, FULL * (FULL + 1) / 2);
        EXPECT(close(own), 0);
        return;
    }
    int fds[FULL + 1];
    for (int i = 0; i <= FULL; i++)
        fds[i] = call(&to);
    tell(FULL + 1);
    for (const int64_t until = now_ms() + 3000; now_ms() < until;)
        continue;
    for (int i = 0; i <= FULL; i++)
        ask(fds[i], (uint64_t)i);
}

/* A call that waits, with a limit, is under way when that is over. */
static void limited(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    uint64_t sum = 0;
    if (server) {
        EXPECT(hear(), FULL + 1);
        answer(own, FULL + 1, &sum);
        EXPECT(sum, FULL * (FULL + 1) / 2);
        EXPECT(close(own), 0);
        return;
    }
    int fds[FULL + 1];
    for (int i = 0; i < FULL; i++) {
        fds[i] = call(&to);
        CHECK(await(fds[i], POLLOUT) & POLLOUT);
    }
    const struct timeval limit = {0, LIMIT_MS * 1000};
    fds[FULL] = tcp(0);
    EXPECT(setsockopt(fds[FULL], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
    const int64_t begin = now_ms();
    EXPECT_ERRNO(connect(fds[FULL], (const struct sockaddr *)&to, sizeof to), EINPROGRESS);
    const int64_t took = now_ms() - begin;
    CHECK(took >= LIMIT_MS && took < LIMIT_MS + AT_ONCE_MS);
    EXPECT(poll_once(fds[FULL], POLLOUT, LIMIT_MS), 0);
    tell(FULL + 1);
    for (int i = 0; i <= FULL; i++) {
        CHECK(await(fds[i], POLLOUT) & POLLOUT);
        EXPECT(pending_error(fds[i]), 0);
        ask(fds[i], (uint64_t)i);
    }
}

/* The server stops listening. */
static void no_more(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    if (server) {
        EXPECT(hear(), 1);
        EXPECT(close(own), 0);
        tell(2);
        EXPECT(hear(), 3);
        return;
    }
    int fds[FULL + 1];
    for (int i = 0; i <= FULL; i++)
        fds[i] = call(&to);
    for (int i = 0; i < FULL; i++)
        CHECK(await(fds[i], POLLOUT) & POLLOUT);
    EXPECT(poll_once(fds[FULL], POLLOUT, LIMIT_MS), 0);
    tell(1);
    EXPECT(hear(), 2);
    const int events = await(fds[FULL], POLLIN | POLLOUT);
    CHECK((events & (POLLERR | POLLHUP)) == (POLLERR | POLLHUP));
    EXPECT(pending_error(fds[FULL]), ECONNREFUSED);
    EXPECT(pending_error(fds[FULL]), 0);
    for (int i = 0; i <= FULL; i++)
        EXPECT(close(fds[i]), 0);
    tell(3);
}

static int is_there(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* The test kills one side while the calls are under way. */
static void dies(void)
{
    struct sockaddr_in to;
    const int own = full_listener(&to);
    uint64_t sum = 0;
    if (server) {
        while (!is_there("go"))
            EXPECT(poll_once(listener, POLLIN, 10), 0); /* The library looks after everything meanwhile. */
        answer(own, CALLS, &sum);
        EXPECT(sum, CALLS * (CALLS - 1) / 2);
        EXPECT(hear(), CALLS);
        EXPECT(close(own), 0);
        return;
    }
    int fds[CALLS];
    for (int i = 0; i < CALLS; i++) {
        fds[i] = tcp(SOCK_NONBLOCK);
        EXPECT_ERRNO(connect(fds[i], (const struct sockaddr *)&to, sizeof to), EINPROGRESS);
    }
    put("called");
    for (int i = 0; i < CALLS; i++) {
        struct pollfd p = {fds[i], POLLOUT, 0};
        EXPECT(poll(&p, 1, LIMIT_S * SECOND_MS), 1);
        EXPECT(pending_error(fds[i]), 0);
        ask(fds[i], (uint64_t)i);
    }
    tell(CALLS);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"given_up", given_up, 0}, {"edges", edges, 0},     {"server_first", server_first, 0}, {"busy_client", busy_client, 0},
        {"limited", limited, 0},   {"no_more", no_more, 0}, {"dies", dies, 1},
    };
    return RUN_CASES(tests);
}
