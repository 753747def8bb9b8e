/* Prints numbered lines to standard output and standard error, by every way that C has: prints LINES MILLISECONDS. No MPI. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void copied(const char *line)
{
    FILE *file = tmpfile();
    if (!file || fputs(line, file) < 0 || fflush(file) || lseek(fileno(file), 0, SEEK_SET) < 0)
        exit(3);
    if (sendfile(1, fileno(file), NULL, strlen(line)) != (ssize_t)strlen(line))
        exit(4);
    fclose(file);
}

static void by_hand(int way, char *line)
{
    struct iovec halves[2] = {{line, 3}, {line + 3, strlen(line + 3)}};
    int again;
    switch (way) {
    case 0:
        if (write(1, line, strlen(line)) != (ssize_t)strlen(line))
            exit(5);
        break;
    case 1:
        if (writev(1, halves, 2) != (ssize_t)strlen(line))
            exit(6);
        break;
    case 2:
        dprintf(1, "%s", line);
        break;
    case 3:
        again = dup(1);
        if (write(again, line, strlen(line)) != (ssize_t)strlen(line))
            exit(7);
        close(again);
        break;
    default:
        copied(line);
    }
}

int main(int argc, char **argv)
{
    int lines = argc > 1 ? atoi(argv[1]) : 10;
    long pause = argc > 2 ? atol(argv[2]) : 0;
    for (int at = 0; at < lines; at++) {
        struct timespec time = {pause / 1000, pause % 1000 * 1000000};
        char line[64];
        snprintf(line, sizeof line, "line %d\n", at);
        switch (at % 8) {
        case 0:
            printf("line %d\n", at);
            break;
        case 1:
            line[strlen(line) - 1] = 0;
            puts(line);
            break;
        case 2:
            fwrite(line, 1, strlen(line), stdout);
            break;
        default:
            /* What is buffered goes first. */
            fflush(stdout);
            by_hand(at % 8 - 3, line);
        }
        if (at % 10 == 9) {
            errno = ENOENT;
            snprintf(line, sizeof line, "error %d", at);
            perror(line);
            fprintf(stderr, "error again %d\n", at);
        }
        if (pause)
            nanosleep(&time, NULL);
    }
    puts("done");
    return 0;
}
