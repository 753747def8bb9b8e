/* What processes do beside talking: duplicates of descriptors, closing ranges, flags, children, threads. */
#define _GNU_SOURCE
#include "net.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

extern char **environ;

static void end(int fd)
{
    EXPECT(shutdown(fd, SHUT_WR), 0);
    expect_end(fd);
    EXPECT(close(fd), 0);
}

/* A message each way. */
static void exchange(int fd, uint64_t seed)
{
    for (int turn = 0; turn < 2; turn++) {
        if (turn == server)
            send_pattern(fd, 2000, seed + (uint64_t)turn);
        else
            recv_pattern(fd, 2000, seed + (uint64_t)turn);
    }
}

/* Any duplicate is the connection; it ends with the last of them. */
static void duplicates(void)
{
    const int fd = meet();
    int copy = MUST(dup(fd));
    exchange(copy, 1);
    EXPECT(close(fd), 0);
    exchange(copy, 3);
    int other = MUST(fcntl(copy, F_DUPFD, 100));
    CHECK(other >= 100);
    EXPECT(fcntl(other, F_GETFD), 0);
    EXPECT(close(copy), 0);
    exchange(other, 5);
    copy = MUST(fcntl(other, F_DUPFD_CLOEXEC, 200));
    CHECK(copy >= 200);
    EXPECT(fcntl(copy, F_GETFD), FD_CLOEXEC);
    EXPECT(dup2(copy, 300), 300);
    EXPECT(dup2(300, 300), 300);
    EXPECT(close(copy), 0);
    EXPECT(close(other), 0);
    exchange(300, 7);
    EXPECT(dup3(300, 301, O_CLOEXEC), 301);
    EXPECT(fcntl(301, F_GETFD), FD_CLOEXEC);
    EXPECT_ERRNO(dup3(301, 301, 0), EINVAL);
    EXPECT_ERRNO(dup2(299, 302), EBADF);
    EXPECT_ERRNO(dup(299), EBADF);
    struct pollfd p = {301, POLLIN, 0};
    together();
    EXPECT(poll(&p, 1, 0), 0); /* Nothing was closed as far as the other side can see. */
    EXPECT(close(300), 0);
    together();
    EXPECT(poll(&p, 1, 20), 0);
    together();
    end(301);
}

/* A duplicate onto a connection ends that one. */
static void duplicate_onto(void)
{
    const int first = meet(), second = meet();
    if (server) {
        EXPECT(dup2(second, first), first);
        EXPECT(close(second), 0);
        exchange(first, 10);
        end(first);
        return;
    }
    expect_end(first);
    EXPECT(close(first), 0);
    exchange(second, 10);
    end(second);
}

/* Something else onto a connection, and a connection onto something else. */
static void other_kinds_onto(void)
{
    const int fd = meet(), file = MUST(open("/dev/null", O_RDWR)), second = meet();
    EXPECT(dup2(file, fd), fd);
    char byte = 1;
    EXPECT_ERRNO(recv(fd, &byte, 1, 0), ENOTSOCK);
    EXPECT(write(fd, &byte, 1), 1);
    EXPECT(read(fd, &byte, 1), 0);
    EXPECT(dup2(second, file), file);
    EXPECT(close(second), 0);
    exchange(file, 20);
    end(file);
    EXPECT(close(fd), 0);
}

static void ranges(void)
{
    int fds[4];
    for (int i = 0; i < 4; i++)
        fds[i] = meet();
    together();
    if (server) {
        for (int i = 0; i < 4; i++)
            EXPECT(dup2(fds[i], 400 + i), 400 + i);
        for (int i = 0; i < 4; i++)
            EXPECT(close(fds[i]), 0);
        EXPECT_ERRNO(close_range(402, 401, 0), EINVAL);
        EXPECT(close_range(400, 403, CLOSE_RANGE_CLOEXEC), 0);
        EXPECT(fcntl(402, F_GETFD), FD_CLOEXEC);
        exchange(402, 30);
        EXPECT(close_range(401, 402, 0), 0);
        EXPECT_ERRNO(fcntl(402, F_GETFD), EBADF);
        exchange(400, 40);
        exchange(403, 50);
        EXPECT(close_range(399, 500, 0), 0);
        return;
    }
    exchange(fds[2], 30);
    expect_end(fds[1]);
    expect_end(fds[2]);
    exchange(fds[0], 40);
    exchange(fds[3], 50);
    for (int i = 0; i < 4; i++) {
        expect_end(fds[i]);
        EXPECT(close(fds[i]), 0);
    }
}

/* The lowest free number is the next: programs rely on it. */
static void lowest_number(void)
{
    const int file = MUST(open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int fd = meet();
    EXPECT(fd, file + 1);
    const int next = MUST(open("/dev/null", O_RDONLY | O_CLOEXEC));
    EXPECT(next, file + 2);
    EXPECT(close(file), 0);
    EXPECT(tcp(0), file);
    EXPECT(close(next), 0);
    EXPECT(close(file), 0);
    end(fd);
}

static void flags(void)
{
    const int fd = meet();
    char byte;
    int on = 1, off = 0;
    EXPECT(fcntl(fd, F_GETFL), O_RDWR);
    EXPECT(ioctl(fd, FIONBIO, &on), 0);
    EXPECT(fcntl(fd, F_GETFL), O_RDWR | O_NONBLOCK);
    EXPECT_ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    const int copy = MUST(dup(fd));
    EXPECT(ioctl(copy, FIONBIO, &off), 0); /* It belongs to what both are about. */
    EXPECT(fcntl(fd, F_GETFL), O_RDWR);
    EXPECT(fcntl(copy, F_SETFL, O_NONBLOCK), 0);
    EXPECT_ERRNO(recv(fd, &byte, 1, 0), EAGAIN);
    EXPECT(fcntl(fd, F_SETFL, 0), 0);
    EXPECT(fcntl(fd, F_GETFD), 0);
    EXPECT(fcntl(fd, F_SETFD, FD_CLOEXEC), 0);
    EXPECT(fcntl(fd, F_GETFD), FD_CLOEXEC);
    EXPECT(fcntl(copy, F_GETFD), 0); /* This one belongs to the number. */
    EXPECT(ioctl(copy, FIOCLEX), 0);
    EXPECT(fcntl(copy, F_GETFD), FD_CLOEXEC);
    EXPECT_ERRNO(fcntl(299, F_GETFL), EBADF);
    EXPECT_ERRNO(ioctl(fd, 0x7777, &on), ENOTTY);
    EXPECT(close(copy), 0);
    together();
    exchange(fd, 60);
    end(fd);
}

static void expect_success(pid_t child)
{
    int status;
    EXPECT(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        FAIL("a child ended with status %#x", status);
}

/* A child that closes all it has inherited does not disturb its parent. */
static void child_closes(void)
{
    const int fd = meet();
    exchange(fd, 70);
    for (int way = 0; way < 3; way++) {
        const pid_t child = MUST(fork());
        if (child == 0) {
            if (way == 0)
                close_range(3, ~0U, 0);
            else
                for (int i = 3; i < 2048; i++)
                    close(i);
            if (way == 2)
                exit(0); /* With what exit handlers there are. */
            _exit(0);
        }
        expect_success(child);
        exchange(fd, 72);
    }
    end(fd);
}

/* A child that lives beside its parent, which goes on talking meanwhile. */
static void child_beside(void)
{
    const int fd = meet();
    int pipes[2];
    EXPECT(pipe(pipes), 0);
    const pid_t child = MUST(fork());
    if (child == 0) {
        close(pipes[1]);
        char byte;
        const ssize_t got = read(pipes[0], &byte, 1);
        _exit(got == 0 ? 0 : 1);
    }
    EXPECT(close(pipes[0]), 0);
    for (uint64_t i = 0; i < 20; i++) {
        exchange(fd, 80 + i);
        pause_ms(10);
    }
    EXPECT(close(pipes[1]), 0);
    expect_success(child);
    end(fd);
}

/* Children have sockets of their own: here each calls the server, which does not know that it is only a child. */
static void child_calls(void)
{
    const int fd = meet();
    for (uint64_t i = 0; i < 3; i++) {
        if (server) {
            const int from_child = meet();
            recv_pattern(from_child, 10000, 100 + i);
            send_pattern(from_child, 10000, 200 + i);
            expect_end(from_child);
            EXPECT(close(from_child), 0);
        } else {
            const pid_t child = MUST(fork());
            if (child == 0) {
                const int own = connect_to(&server4);
                send_pattern(own, 10000, 100 + i);
                recv_pattern(own, 10000, 200 + i);
                close(own);
                _exit(0);
            }
            expect_success(child);
        }
        exchange(fd, 110 + i);
    }
    end(fd);
}

/* Two children that talk to each other. */
static void children_among_themselves(void)
{
    const int fd = meet();
    uint16_t port;
    const int own = listen_at(INADDR_LOOPBACK, 1, &port);
    const struct sockaddr_in to = loopback(port);
    const pid_t one = MUST(fork());
    if (one == 0) {
        const int with = MUST(accept(own, NULL, NULL));
        recv_pattern(with, 50000, 120);
        expect_end(with);
        _exit(0);
    }
    const pid_t other = MUST(fork());
    if (other == 0) {
        const int with = connect_to(&to);
        send_pattern(with, 50000, 120);
        _exit(0);
    }
    exchange(fd, 121);
    expect_success(other);
    expect_success(one);
    EXPECT(close(own), 0);
    end(fd);
}

/* In a function of its own: the child shares its parent's stack. */
__attribute__((noinline)) static pid_t start_by_vfork(char *const *words)
{
    const pid_t child = vfork();
    if (child == 0) {
        execve("/bin/true", words, environ);
        _exit(127);
    }
    return child;
}

/* Every way to start another program. */
static void other_programs(void)
{
    const int fd = meet();
    exchange(fd, 130);
    EXPECT(system("exit 0"), 0);
    exchange(fd, 131);
    FILE *output = popen("echo said", "r");
    char line[100] = "";
    CHECK(output != NULL && fgets(line, sizeof line, output) != NULL && strcmp(line, "said\n") == 0);
    EXPECT(pclose(output), 0);
    exchange(fd, 132);
    char *const words[] = {"true", NULL};
    pid_t child;
    EXPECT(posix_spawn(&child, "/bin/true", NULL, NULL, words, environ), 0);
    expect_success(child);
    EXPECT(posix_spawnp(&child, "true", NULL, NULL, words, environ), 0);
    expect_success(child);
    exchange(fd, 133);
    expect_success(MUST(start_by_vfork(words)));
    exchange(fd, 134);
    child = MUST(fork());
    if (child == 0) {
        execlp("true", "true", (char *)NULL);
        _exit(127);
    }
    expect_success(child);
    EXPECT_ERRNO(execv("/does/not/exist", words), ENOENT);
    exchange(fd, 135);
    end(fd);
}

/* Calls by number, where those of the library's names would be expected. */
static void by_number(void)
{
    const int fd = meet();
    EXPECT(syscall(SYS_getpid), getpid());
    CHECK(syscall(SYS_gettid) > 0);
    EXPECT_ERRNO(syscall(SYS_close, -1), EBADF);
    exchange(fd, 140);
    end(fd);
}

static volatile int stop_computing;

static void *compute(void *sum)
{
    uint64_t x = 1;
    while (!stop_computing) {
        for (int i = 0; i < 1000; i++)
            x = mix(x);
        free(malloc(x % 5000 + 1));
        sched_yield();
    }
    *(uint64_t *)sum = x;
    return NULL;
}

/* Threads that compute while one talks. */
static void helpers(void)
{
    const int fd = meet();
    pthread_t threads[2];
    uint64_t sums[2];
    stop_computing = 0;
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, compute, &sums[i]), 0);
    for (uint64_t i = 0; i < 30; i++)
        exchange(fd, 150 + i);
    stop_computing = 1;
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL), 0);
    end(fd);
}

static void *talk(void *fd)
{
    for (uint64_t i = 0; i < 50; i++)
        exchange(*(int *)fd, 200 + i);
    return NULL;
}

/* Special: two threads that talk, each on a connection of its own. */
static void talking_threads(void)
{
    int fds[2] = {meet(), 0};
    fds[1] = meet();
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_create(&threads[i], NULL, talk, &fds[i]), 0);
    for (int i = 0; i < 2; i++)
        EXPECT(pthread_join(threads[i], NULL), 0);
    end(fds[0]);
    end(fds[1]);
}

/* As daemons do at their start. What is left are the listeners and the connection for control, which end here: the last case, therefore. */
static void closes_everything(void)
{
    const int fd = meet();
    exchange(fd, 160);
    end(fd);
    together();
    if (server) {
        struct pollfd p = {listener, POLLIN, 0};
        const int kept = MUST(fcntl(listener, F_DUPFD, 500));
        EXPECT(close_range(3, 499, 0), 0);
        EXPECT(close_range(501, ~0U, 0), 0);
        EXPECT(poll(&p, 1, 0), 1);
        EXPECT(p.revents, POLLNVAL);
        listener = kept;
    } else {
        for (int i = 3; i < 4096; i++)
            close(i);
    }
    const int again = meet();
    EXPECT(again, 3);
    exchange(again, 170);
    end(again);
}

int main(int argc, char **argv)
{
    static const struct test tests[] = {
        {"duplicates", duplicates, 0},
        {"duplicate_onto", duplicate_onto, 0},
        {"other_kinds_onto", other_kinds_onto, 0},
        {"ranges", ranges, 0},
        {"lowest_number", lowest_number, 0},
        {"flags", flags, 0},
        {"child_closes", child_closes, 0},
        {"child_beside", child_beside, 0},
        {"child_calls", child_calls, 0},
        {"children_among_themselves", children_among_themselves, 0},
        {"other_programs", other_programs, 0},
        {"by_number", by_number, 0},
        {"helpers", helpers, 0},
        {"talking_threads", talking_threads, 1},
        {"closes_everything", closes_everything, 0},
    };
    return RUN_CASES(tests);
}
