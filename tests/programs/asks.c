/* Reads lines from standard input and prints each with its number. Arguments: how (stdio, read, poll), and microseconds to think about each line. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static long number, microseconds;

static void think(const char *line)
{
    struct timespec span = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&span, NULL);
    printf("%ld %s\n", number++, line);
    fflush(stdout);
}

static int with_stdio(void)
{
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        think(line);
    }
    return ferror(stdin) ? 1 : 0;
}

static int with_read(int polls)
{
    char line[256], piece[100];
    size_t length = 0;
    for (;;) {
        struct pollfd entry = {0, POLLIN, 0};
        if (polls && poll(&entry, 1, -1) != 1)
            return 2;
        ssize_t count = read(0, piece, sizeof piece);
        if (count <= 0)
            return count < 0 || length > 0;
        for (ssize_t i = 0; i < count; i++) {
            line[length] = piece[i];
            if (piece[i] == '\n' || length == sizeof line - 1) {
                line[length] = 0;
                think(line);
                length = 0;
            } else {
                length++;
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 3;
    microseconds = atol(argv[2]);
    int result = strcmp(argv[1], "stdio") == 0 ? with_stdio() : with_read(strcmp(argv[1], "poll") == 0);
    printf("done, %ld lines\n", number);
    return result;
}
