/* Rank 1 calls rank 0 until it listens, and is refused a number of times, by calls that wait and calls that do not; then numbers come. Brought back from its beginning it must be
 * refused as often, though rank 0 listens by then. DIR/early says that the numbers have begun. net_early rank DIR. No MPI.
 */
#define _GNU_SOURCE
#include "net.h"

enum { REFUSALS = 20, NUMBERS = 200, PAUSE_MS = 10 };

/* A socket with an address that does not listen yet. */
static int bound(struct sockaddr_in *at)
{
    socklen_t length = sizeof *at;
    const int fd = tcp(0);
    *at = loopback(0);
    EXPECT(bind(fd, (struct sockaddr *)at, sizeof *at), 0);
    EXPECT(getsockname(fd, (struct sockaddr *)at, &length), 0);
    return fd;
}

/* Whether one call is answered, on a new socket. */
static int calls(const struct sockaddr_in *to, int flags, int *fd)
{
    *fd = tcp(flags);
    int result = connect(*fd, (const struct sockaddr *)to, sizeof *to);
    int error = result == -1 ? errno : 0;
    if (error == EINPROGRESS) {
        socklen_t length = sizeof error;
        CHECK(await(*fd, POLLOUT) != 0);
        EXPECT(getsockopt(*fd, SOL_SOCKET, SO_ERROR, &error, &length), 0);
    }
    if (error == 0)
        return 1;
    EXPECT(error, ECONNREFUSED);
    EXPECT(close(*fd), 0);
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at;
    int fd, refused = 0;
    start(argc, argv);
    current = "early";
    if (server) {
        const int late = bound(&at);
        tell(ntohs(at.sin_port));
        CHECK(hear() >= REFUSALS);
        EXPECT(listen(late, 8), 0);
        fd = MUST(accept(late, NULL, NULL));
    } else {
        at = loopback((uint16_t)hear());
        while (!calls(&at, refused % 2 ? SOCK_NONBLOCK : 0, &fd)) {
            if (++refused == REFUSALS)
                tell((uint64_t)refused);
            pause_ms(PAUSE_MS);
        }
        CHECK(refused >= REFUSALS);
        EXPECT(fcntl(fd, F_SETFL, 0), 0);
        put("early");
    }
    for (uint64_t number = 0; number < NUMBERS; number++)
        if (server) {
            send_whole(fd, &number, sizeof number);
            pause_ms(PAUSE_MS);
        } else {
            uint64_t got;
            recv_whole(fd, &got, sizeof got);
            EXPECT(got, number);
        }
    together();
    EXPECT(close(fd), 0);
    printf("%s: all numbers\n", server ? "server" : "client");
    return 0;
}
