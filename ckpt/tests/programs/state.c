/* A file that is changed in place, temporary files that come and go, locks, guard pages, a listening socket: all as they were. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    exit(3);
}

/* Runs a check in a child, which holds none of the process's locks; its exit code, or 128 and the signal. */
static int child(int (*check)(void *), void *argument) {
    int status;
    pid_t pid = fork();
    if (pid == 0) _exit(check(argument));
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int record_is_free(void *path) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    return fcntl(open(path, O_RDWR), F_SETLK, &lock) == 0;
}

static int file_is_free(void *path) { return flock(open(path, O_RDWR), LOCK_SH | LOCK_NB) == 0; }

static int touch(void *page) { return *(volatile char *)page; }

/* Another process has taken the port while this one was dead: the kernel's table still shows it for a minute. */
static void tell_holder(int port) {
    char line[256], wanted[8];
    FILE *table = fopen("/proc/net/tcp", "r");
    sprintf(wanted, ":%04X ", port);
    while (table && fgets(line, sizeof line, table))
        if (strstr(line, wanted)) printf("%s", line);
}

/* Listens at a port that the kernel does not give out by itself (its range begins at 32768, unless that was changed): while this process is dead, another
 * connection of this machine could get one of those. */
static int listen_below(int listener, struct sockaddr_in *address) {
    for (int try = 0; try < 10000; try++) {
        address->sin_port = htons(20000 + (getpid() + try) % 10000);
        if (!bind(listener, (void *)address, sizeof *address)) return listen(listener, 5);
        if (errno != EADDRINUSE) return -1;
    }
    return -1;
}

int main(void) {
    long number = 0;
    struct flock record = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, peer;
    socklen_t length = sizeof address;
    int counter = open("counter", O_RDWR | O_CREAT, 0600), locked = open("locked", O_RDWR | O_CREAT, 0600);
    int listener = socket(AF_INET, SOCK_STREAM, 0), temporary = -1;
    char *memory = mmap(0, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), name[32];
    if (counter < 0 || locked < 0 || memory == MAP_FAILED) fail("open");
    if (fcntl(counter, F_SETLK, &record) || flock(locked, LOCK_EX)) fail("locks");
    if (listen_below(listener, &address) || getsockname(listener, (void *)&address, &length)) fail("listen");
    memset(memory, 7, 8 * 4096);
    int guarded = madvise(memory + 4096, 2 * 4096, MADV_GUARD_INSTALL) == 0;
    if (pwrite(counter, &number, sizeof number, 0) != sizeof number) fail("pwrite");
    printf("ready\n");
    fflush(stdout);
    for (long i = 0; i < 120; i++) {
        if (pread(counter, &number, sizeof number, 0) != sizeof number || number != i) fail("the counter's file is of another time");
        if (temporary >= 0) {
            if (pread(temporary, &number, sizeof number, 0) != sizeof number || number != i) fail("the temporary file");
            if (unlink(name) || close(temporary)) fail("unlink");
        }
        number = i + 1;
        sprintf(name, "temporary.%ld", i);
        if ((temporary = open(name, O_RDWR | O_CREAT | O_EXCL, 0600)) < 0) unlink(name), temporary = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (pwrite(temporary, &number, sizeof number, 0) != sizeof number) fail("pwrite");
        if (pwrite(counter, &number, sizeof number, 0) != sizeof number) fail("pwrite");
        usleep(5000);
    }
    if (child(record_is_free, "counter")) fail("the record is not locked");
    if (child(file_is_free, "locked")) fail("the file is not locked");
    if (guarded && child(touch, memory + 4096) != 128 + SIGSEGV) fail("the guard page is not guarded");
    if (child(touch, memory + 3 * 4096) != 7) fail("the page behind the guard");
    int to = socket(AF_INET, SOCK_STREAM, 0), from;
    length = sizeof peer;
    if (getsockname(listener, (void *)&peer, &length)) fail("getsockname");
    if (peer.sin_port != address.sin_port) {
        tell_holder(ntohs(address.sin_port));
        fail("another port");
    }
    if (connect(to, (void *)&address, sizeof address) || (from = accept(listener, 0, 0)) < 0) fail("connect");
    if (write(to, "x", 1) != 1 || read(from, name, 1) != 1) fail("socket");
    printf("all as it was\n");
    return 0;
}
