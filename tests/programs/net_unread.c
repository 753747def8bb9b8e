/* Rank 1 looks by FIONREAD, or MSG_PEEK, and usleep alone how much has come, and decides by it: it takes what it was told is there, in two calls that do not wait, and says to rank 0
 * how much that was, and how often it had looked in vain. Both print it. Brought back, rank 1 must go on in such a loop, and decide as it did. DIR/sent says that some messages have come. net_unread rank DIR. No MPI.
 */
#define _GNU_SOURCE
#include "net.h"
#include <linux/sockios.h>
#include <sys/ioctl.h>

enum { MESSAGES = 300, SOME = 30, PAUSE_MS = 5, LOOKS_US = 300, MOST = 2000 };

/* What rank 1 has decided. */
struct told {
    uint64_t count, vain;
};

static size_t length_of(int i)
{
    return 2 + mix((uint64_t)i) % (MOST - 1);
}

/* Each message comes in two parts, and is answered by what rank 1 was told of it. */
static void sends(int i, int fd)
{
    unsigned char bytes[MOST];
    const size_t length = length_of(i), first = length / 2;
    fill(bytes, length, (uint64_t)i, 0);
    send_whole(fd, bytes, first);
    pause_ms(i % 3);
    send_whole(fd, bytes + first, length - first);
    for (size_t done = 0; done < length;) {
        struct told told;
        recv_whole(fd, &told, sizeof told);
        done += told.count;
        printf("server %d: %llu after %llu\n", i, (unsigned long long)told.count, (unsigned long long)told.vain);
    }
}

static int by_fionread(int fd)
{
    int count = -1;
    EXPECT(ioctl(fd, FIONREAD, &count), 0);
    return count;
}

static int by_peek(int fd)
{
    unsigned char bytes[MOST];
    const ssize_t count = recv(fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    CHECK(count > 0 || (count == -1 && errno == EAGAIN));
    return count > 0 ? (int)count : 0;
}

/* No call finds nothing before it has all that was told. It may be in parts, where rank 0 came back in between. */
static void take(int fd, unsigned char *bytes, size_t count)
{
    for (size_t taken = 0; taken < count;)
        taken += (size_t)MUST(recv(fd, bytes + taken, count - taken, MSG_DONTWAIT));
}

static void looks(int i, int fd)
{
    unsigned char bytes[MOST];
    int waiting = -1;
    for (size_t done = 0; done < length_of(i);) {
        struct told told = {0, 0};
        for (; (told.count = (uint64_t)(i % 4 ? by_fionread : by_peek)(fd)) == 0; told.vain++)
            usleep(LOOKS_US);
        CHECK(told.count <= length_of(i) - done);
        /* What was told may be printed before it is taken. */
        printf("client %d: %llu after %llu\n", i, (unsigned long long)told.count, (unsigned long long)told.vain);
        fflush(stdout);
        take(fd, bytes, told.count / 2);
        usleep(LOOKS_US);
        take(fd, bytes + told.count / 2, told.count - told.count / 2);
        check_filled(bytes, told.count, (uint64_t)i, done);
        done += told.count;
        send_whole(fd, &told, sizeof told);
        EXPECT(ioctl(fd, SIOCOUTQ, &waiting), 0);
        CHECK(waiting >= 0);
    }
}

int main(int argc, char **argv)
{
    start(argc, argv);
    current = "unread";
    const int fd = meet();
    for (int i = 0; i < MESSAGES; i++) {
        (server ? sends : looks)(i, fd);
        if (server && i == SOME)
            put("sent");
        if (server)
            pause_ms(PAUSE_MS);
    }
    together();
    printf("%s: all numbers\n", server ? "server" : "client");
    return 0;
}
