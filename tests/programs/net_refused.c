/* Rank 0 sends numbers. Rank 1, for each, sends on a connection that rank 0 has closed long ago, and reads from one of which it has shut down reading: what it is told of that
 * must not change when it is brought back. net_refused rank DIR. No MPI.
 */
#define _GNU_SOURCE
#include "net.h"

enum { NUMBERS = 600, PAUSE_MS = 10 };

/* A connection that is closed on the other side takes something once more, and refuses all that follows. */
static void is_refused(int fd, int *refused)
{
    const char byte = 'x';
    const ssize_t sent = send(fd, &byte, 1, MSG_NOSIGNAL);
    CHECK(sent == 1 ? *refused == 0 : errno == EPIPE || (*refused == 0 && errno == ECONNRESET));
    *refused += sent != 1;
}

int main(int argc, char **argv)
{
    char byte;
    int refused = 0;
    start(argc, argv);
    current = "refused";
    const int closed = meet(), shut = meet();
    if (server)
        EXPECT(close(closed), 0);
    else
        EXPECT(shutdown(shut, SHUT_RD), 0);
    together();
    for (uint64_t number = 1000; number < 1000 + NUMBERS; number++)
        if (server) {
            tell(number);
            pause_ms(PAUSE_MS);
        } else {
            EXPECT(hear(), number);
            is_refused(closed, &refused);
            EXPECT(recv(shut, &byte, 1, 0), 0);
        }
    /* What is not wanted is no end: bytes that come are there. */
    if (server) {
        send_pattern(shut, 1000, 1);
    } else {
        CHECK(refused > NUMBERS / 2);
        while (MUST(recv(shut, &byte, 1, MSG_PEEK)) == 0)
            pause_ms(1);
        recv_pattern(shut, 1000, 1);
        EXPECT(close(closed), 0);
    }
    together();
    EXPECT(close(shut), 0);
    printf("%s: all numbers\n", server ? "server" : "client");
    return 0;
}
