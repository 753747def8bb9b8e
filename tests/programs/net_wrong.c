/* Calls with descriptors, pointers, lengths and flags that are wrong. Each prints what came of it: a run with RADIC has to print what one without it does. */
#define _GNU_SOURCE
#include "net.h"
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>

/* select() does not look at numbers that are higher than the process has ever had room for: 64 at first. */
enum { PAGE = 4096, NOT_OPEN = 60 };

/* A call, what it returns, and why it fails. */
#define T(call)                                                                                                                            \
    do {                                                                                                                                   \
        errno = 0;                                                                                                                         \
        const long long got_ = (long long)(call);                                                                                          \
        const int why_ = errno;                                                                                                            \
        printf("%s %s %s: %lld %s\n", server ? "server" : "client", about, #call, got_, got_ < 0 ? strerrorname_np(why_) : "");             \
    } while (0)

static char about[200];
/* Nothing is known of them when this is compiled. */
static char *volatile nowhere[6];
static const char *const nowhere_names[] = {"null", "low", "unmapped", "no access", "kernel", "end"};
static char *volatile constant; /* a page that can only be read */
static char *volatile room;     /* one that can be written */
static volatile int minus_one = -1, too_many = 1025, most_events = INT_MAX;
static volatile size_t huge_length = (size_t)1 << 40, negative_length = (size_t)-8;

static void make_pointers(void)
{
    /* Far from the end of the address space: the kernel refuses lengths that lead behind it, whatever else is wrong. */
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *pages = mmap((void *)0x10000000000, 8 * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(pages != MAP_FAILED);
    EXPECT(munmap(pages + PAGE, PAGE), 0);
    EXPECT(mprotect(pages + 2 * PAGE, PAGE, PROT_NONE), 0);
    EXPECT(mprotect(pages + 4 * PAGE, PAGE, PROT_READ), 0);
    EXPECT(munmap(pages + 7 * PAGE, PAGE), 0);
    room = pages + 6 * PAGE;
    constant = pages + 4 * PAGE;
    nowhere[1] = (char *)8;
    nowhere[2] = pages + PAGE;
    nowhere[3] = pages + 2 * PAGE;
    nowhere[4] = (char *)-PAGE;
    nowhere[5] = pages + 7 * PAGE - 2; /* two bytes before an end */
}

static void name(const char *what, const char *with)
{
    snprintf(about, sizeof about, "(%s, %s)", what, with);
}

/* What is wrong whatever the descriptor is, or harmless. */
static void with_any(const char *what, int fd)
{
    struct sockaddr_storage address = {.ss_family = AF_INET};
    struct sockaddr *const at = (struct sockaddr *)&address;
    socklen_t none = 0, less = (socklen_t)-1;
    struct epoll_event event = {.events = EPOLLIN};
    name(what, "-");
    T(listen(fd, -1));
    T(accept4(fd, NULL, NULL, 0x40));
    T(accept4(fd, NULL, NULL, INT_MAX));
    T(shutdown(fd, 7));
    T(shutdown(fd, -1));
    T(bind(fd, at, 0));
    T(bind(fd, at, 1));
    T(bind(fd, at, 200));
    T(bind(fd, at, less));
    T(connect(fd, at, 200));
    T(connect(fd, at, less));
    T(getsockname(fd, at, &none));
    T(getsockname(fd, at, &less));
    T(getpeername(fd, at, &less));
    T(getsockopt(fd, 9999, 9999, room, &none));
    T(getsockopt(fd, SOL_SOCKET, SO_ERROR, room, &less));
    T(setsockopt(fd, 9999, 9999, room, 4));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, room, 3));
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, room, less));
    memset(room, 0, PAGE);
    T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, room, 1 << 28));
    T(send(fd, room, 0, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL));
    T(recv(fd, room, 1, MSG_OOB | MSG_DONTWAIT));
    T(readv(fd, (struct iovec *)room, minus_one));
    T(writev(fd, (struct iovec *)room, minus_one));
    T(readv(fd, (struct iovec *)room, too_many));
    T(writev(fd, (struct iovec *)room, too_many));
    T(fcntl(fd, 9999, 0));
    T(ioctl(fd, 0x7f7f7f7f, 0));
    T(dup2(fd, -1));
    T(dup2(fd, INT_MAX));
    T(dup3(fd, fd, 0));
    T(dup3(fd, 1, 0x40));
    T(sendfile(fd, -1, NULL, 10));
    T(sendfile(fd, -1, NULL, 0));
    T(splice(fd, NULL, -1, NULL, 1, 0));
    T(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event));
    T(epoll_ctl(fd, 77, fd, &event));
    T(epoll_ctl(fd, EPOLL_CTL_DEL, -1, NULL));
    T(epoll_wait(fd, (struct epoll_event *)room, 0, 0));
    T(epoll_wait(fd, (struct epoll_event *)room, minus_one, 0));
    T(epoll_wait(fd, (struct epoll_event *)room, most_events, 0));
    struct timespec wrong = {-1, 0};
    T(epoll_pwait2(fd, (struct epoll_event *)room, 1, &wrong, NULL));
    T(recvmmsg(fd, (struct mmsghdr *)room, 1, MSG_DONTWAIT, &wrong));
    T(sendmmsg(fd, (struct mmsghdr *)room, 0, 0));
    struct pollfd polled = {fd, 0, 0};
    T(poll(&polled, 1, 0));
    T(polled.revents & POLLNVAL);
    if (fd >= 0 && fd < FD_SETSIZE) {
        fd_set set;
        struct timeval now = {0, 0};
        FD_ZERO(&set);
        FD_SET(fd, &set);
        T(select(fd + 1, NULL, NULL, &set, &now));
    }
}

/* Pointers that lead nowhere. The connection has bytes to be received, which none of this takes. */
static void with_pointers(const char *what, int fd, int has_bytes)
{
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        char *const p = nowhere[i];
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        struct iovec part = {p, 100}, long_part = {room, negative_length};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1}, parts_nowhere = {.msg_iov = (struct iovec *)p, .msg_iovlen = 1};
        struct msghdr many = {.msg_iov = &part, .msg_iovlen = 1025}, long_message = {.msg_iov = &long_part, .msg_iovlen = 1};
        const struct timespec now = {0, 0};
        name(what, nowhere_names[i]);
        T(bind(fd, (struct sockaddr *)p, 16));
        T(connect(fd, (struct sockaddr *)p, 16));
        T(getsockname(fd, (struct sockaddr *)p, &length));
        T(getsockname(fd, (struct sockaddr *)&address, (socklen_t *)p));
        length = sizeof address;
        T(getpeername(fd, (struct sockaddr *)p, &length));
        T(getpeername(fd, (struct sockaddr *)&address, (socklen_t *)p));
        length = sizeof(int);
        T(getsockopt(fd, SOL_SOCKET, SO_ERROR, p, &length));
        T(getsockopt(fd, SOL_SOCKET, SO_ERROR, room, (socklen_t *)p));
        T(getsockopt(fd, SOL_SOCKET, SO_TYPE, p, &length));
        T(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, p, sizeof(struct timeval)));
        T(setsockopt(fd, SOL_SOCKET, SO_LINGER, p, sizeof(struct linger)));
        T(send(fd, p, 100, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(send(fd, p, huge_length, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(sendto(fd, room, 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&address, 200));
        if (p != NULL)
            T(sendto(fd, room, 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)p, 16));
        T(write(fd, p, 100));
        T(write(fd, p, negative_length));
        T(writev(fd, &part, 1));
        T(writev(fd, &long_part, 1));
        T(writev(fd, (struct iovec *)p, 2));
        T(sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(sendmsg(fd, &parts_nowhere, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(sendmsg(fd, &many, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(sendmsg(fd, &long_message, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(sendmsg(fd, (struct msghdr *)p, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(sendmmsg(fd, (struct mmsghdr *)p, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
        T(ioctl(fd, FIONBIO, p));
        T(epoll_ctl(fd, EPOLL_CTL_ADD, control, (struct epoll_event *)p));
        T(epoll_pwait(fd, (struct epoll_event *)room, 1, 0, (sigset_t *)(i == 0 ? (char *)8 : p)));
        T(poll((struct pollfd *)p, 1, 0));
        struct pollfd polled = {fd, 0, 0};
        T(ppoll(&polled, 1, &now, (sigset_t *)(i == 0 ? (char *)8 : p)));
        if (p != NULL) {
            struct timeval zero = {0, 0};
            T(select(200, (fd_set *)p, NULL, NULL, &zero));
        }
        T(uname((struct utsname *)p));
        if (!has_bytes || i == 5)
            continue; /* There are two bytes of room before the end. */
        T(recv(fd, p, 100, MSG_DONTWAIT));
        T(recv(fd, p, 100, MSG_DONTWAIT | MSG_PEEK));
        T(recv(fd, p, negative_length, MSG_DONTWAIT));
        T(read(fd, p, 100));
        T(read(fd, room, negative_length));
        T(readv(fd, &part, 1));
        T(readv(fd, &long_part, 1));
        T(readv(fd, (struct iovec *)p, 2));
        T(recvmsg(fd, &message, MSG_DONTWAIT));
        T(recvmsg(fd, &parts_nowhere, MSG_DONTWAIT));
        T(recvmsg(fd, &many, MSG_DONTWAIT));
        T(recvmsg(fd, &long_message, MSG_DONTWAIT));
        T(recvmsg(fd, (struct msghdr *)p, MSG_DONTWAIT));
        T(recvmmsg(fd, (struct mmsghdr *)p, 1, MSG_DONTWAIT, NULL));
        if (p != NULL)
            T(recvmmsg(fd, (struct mmsghdr *)room, 1, MSG_DONTWAIT, (struct timespec *)p));
    }
    name(what, "constant");
    if (has_bytes)
        T(recv(fd, constant, 100, MSG_DONTWAIT));
}

static void descriptors(void)
{
    int pipes[2];
    EXPECT(pipe2(pipes, O_NONBLOCK), 0);
    const struct sockaddr_in anywhere = loopback(0);
    const int bound = tcp(SOCK_NONBLOCK), other = tcp(SOCK_NONBLOCK);
    EXPECT(bind(bound, (const struct sockaddr *)&anywhere, sizeof anywhere), 0);
    EXPECT(bind(other, (const struct sockaddr *)&anywhere, sizeof anywhere), 0);
    EXPECT(listen(other, 5), 0);
    const struct {
        const char *name;
        int fd;
    } all[] = {
        {"none", -1},
        {"less", INT_MIN},
        {"not open", NOT_OPEN},
        {"high", 1 << 30},
        {"highest", INT_MAX},
        {"file", MUST(open("/dev/null", O_RDWR))},
        {"pipe to read", pipes[0]},
        {"pipe to write", pipes[1]},
        {"bound", bound},
        {"listener", other},
        {"fresh", tcp(SOCK_NONBLOCK)},
        {"datagrams", MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0))},
        {"epoll", MUST(epoll_create1(0))},
        {"connection", control},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        with_any(all[i].name, all[i].fd);
        with_pointers(all[i].name, all[i].fd, all[i].fd == control);
    }
    name("none", "-");
    T(close(-1));
    T(close(NOT_OPEN));
    T(close(INT_MAX));
    T(dup(-1));
    T(dup2(-1, control));
    T(dup2(NOT_OPEN, control));
    T(dup3(pipes[0], control, 0x40));
    T(close_range(9, 8, 0));
    T(close_range(3, INT_MAX, 0x80));
    T(fdopen(-1, "r") == NULL ? -1 : 0);
    T(dprintf(-1, "x"));
    T(dprintf(NOT_OPEN, "x"));
    fflush(stdout);
    T(write(1, nowhere[2], 100));
    T(write(1, nowhere[0], 100));
    T(poll((struct pollfd *)room, ~0u >> 1, 0));
    T(select(-1, NULL, NULL, NULL, &(struct timeval){0, 0}));
    /* The kernel takes structures at any address. */
    const struct pollfd polled = {control, POLLOUT, 0};
    memcpy(room + 1, &polled, sizeof polled);
    T(poll((struct pollfd *)(room + 1), 1, 0));
    T(((struct pollfd *)(room + 1))->revents & POLLOUT);
}

/* What <bits/> of the C library calls instead where sizes are known (_FORTIFY_SOURCE). */
extern int __open_2(const char *, int), __open64_2(const char *, int), __openat_2(int, const char *, int), __openat64_2(int, const char *, int);
extern int __poll_chk(struct pollfd *, nfds_t, int, size_t), __gethostname_chk(char *, size_t, size_t);
extern int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
extern ssize_t __read_chk(int, void *, size_t, size_t), __recv_chk(int, void *, size_t, size_t, int);
extern ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
extern int __vdprintf_chk(int, int, const char *, va_list);

static int printed(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    const int result = vdprintf(fd, format, list) + __vdprintf_chk(fd, 1, format, list);
    va_end(list);
    return result;
}

/* Files, clocks, random numbers and children. */
static void others(void)
{
    static volatile int odd = 0x7f7f7f7f, none = -1;
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere - 1; i++) {
        char *const p = nowhere[i];
        name("path or place", nowhere_names[i]);
        T(open(p, O_RDONLY));
        T(open64(p, O_RDONLY));
        T(openat(AT_FDCWD, p, O_RDONLY));
        T(openat64(none, p, O_RDONLY));
        T(__open_2(p, O_RDONLY));
        T(__open64_2(p, O_RDONLY));
        T(__openat_2(none, p, O_RDONLY));
        T(__openat64_2(AT_FDCWD, p, O_RDONLY));
        T(fopen(p, "r") == NULL ? -1 : 0);
        T(fopen64(p, "r") == NULL ? -1 : 0);
        T(getrandom(p, 10, 0));
        T(getentropy(p, 10));
        T(getrusage(RUSAGE_SELF, (struct rusage *)p));
        T(waitid(P_PID, 1 << 30, (siginfo_t *)p, WEXITED));
        T(sigprocmask(SIG_BLOCK, NULL, (sigset_t *)p));
        T(pthread_sigmask(SIG_BLOCK, NULL, (sigset_t *)p));
        T(wait4(none, (int *)p, 0, NULL));
        T(__poll_chk((struct pollfd *)p, 1, 0, PAGE));
        T(__ppoll_chk((struct pollfd *)p, 1, &(struct timespec){0, 0}, NULL, PAGE));
        T(__read_chk(NOT_OPEN, p, 10, 10));
        T(__recv_chk(NOT_OPEN, p, 10, 10, 0));
        T(__recvfrom_chk(NOT_OPEN, p, 10, 10, 0, NULL, NULL));
        T(pselect(none, (fd_set *)p, NULL, NULL, &(struct timespec){0, 0}, NULL));
        pid_t child;
        T(posix_spawn(&child, i == 0 ? (char *)8 : p, NULL, NULL, (char *[]){"x", NULL}, environ));
        T(posix_spawnp(&child, "/no/such/program", NULL, NULL, (char *[]){"x", NULL}, environ));
    }
    name("flags and numbers", "-");
    struct timespec at;
    struct rusage usage;
    T(clock_gettime(odd, &at));
    T(getrusage(odd, &usage));
    sigset_t none_blocked;
    sigemptyset(&none_blocked);
    T(sigprocmask(odd, &none_blocked, NULL));
    T(pthread_sigmask(odd, &none_blocked, NULL));
    T(sigaction(odd, NULL, NULL));
    T(signal(odd, SIG_DFL) == SIG_ERR ? -1 : 0);
    T(getrandom(room, 10, 0x40));
    T(getentropy(room, 300));
    T(gethostname(room, 0));
    T(__gethostname_chk(room, 0, 0));
    T(epoll_create(0));
    T(epoll_create(none));
    T(fcntl64(none, F_GETFL, 0));
    T(fcntl64(NOT_OPEN, odd, 0));
    T(sendfile64(none, none, NULL, 10));
    T(sendfile64(NOT_OPEN, control, NULL, huge_length));
    T(openat(AT_FDCWD, "/no/such/file", O_RDONLY));
    T(open("/dev/null/x", O_RDONLY));
    T(wait(NULL));
    T(wait3(NULL, WNOHANG, NULL));
    T(wait3(NULL, odd, NULL));
    T(waitpid(1 << 30, NULL, 0));
    T(waitpid(none, NULL, odd));
    T(wait4(1 << 30, NULL, odd, NULL));
    T(waitid(odd, 0, NULL, WEXITED));
    T(popen("true", "q") == NULL ? -1 : 0);
    T(printed(none, "x"));
    T(printed(NOT_OPEN, "x"));
}

/* Calls that take something, and have no place for it. */
static void lost(void)
{
    struct sockaddr_storage address;
    char byte;
    name("connection", "taken");
    T(recvfrom(control, &byte, 1, 0, (struct sockaddr *)&address, (socklen_t *)nowhere[2]));
    socklen_t length = (socklen_t)-1;
    T(recvfrom(control, &byte, 1, 0, (struct sockaddr *)&address, &length));
    T(recvfrom(control, &byte, 1, 0, NULL, (socklen_t *)nowhere[2]));
    T(recv(control, room, huge_length, MSG_PEEK) >= 5);
    T(recv(control, room, 5, 0));
    fflush(stdout);
    together();
    if (!server) {
        const int fd = connect_to(&server4);
        expect_end(fd);
        EXPECT(close(fd), 0);
        return;
    }
    await(listener, POLLIN);
    length = sizeof address;
    T(accept(listener, (struct sockaddr *)nowhere[2], &length));
}

static void wrong(void)
{
    make_pointers();
    EXPECT(fcntl(control, F_SETFL, O_NONBLOCK), 0);
    send_whole(control, "abcdefgh", 8);
    await(control, POLLIN);
    pause_ms(100); /* All of it is here: what is taken at once is the same in every run. */
    descriptors();
    others();
    EXPECT(fcntl(control, F_SETFL, 0), 0);
    lost();
    together();
}

static const struct test tests[] = {{"wrong", wrong, 0}};

int main(int argc, char **argv)
{
    return RUN_CASES(tests);
}
