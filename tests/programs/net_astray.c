/* A process that goes another way when it executes again: net_astray rank DIR HOW ROUNDS.
 *
 * Rank 0, the server, sends a number to rank 1 each 5 ms and gets it back. Rank 1 notes in DIR/done how far it is, so it finds out when it executes a round
 * again, and then it goes astray in the way that HOW names: it does not ask for what it had asked for then. Only in the job's first epoch: in the next one both
 * see that DIR/done is there already, and all goes well. At the end each says OK.
 */
#include "net.h"

static int talk, quiet, may_stray;
static const char *how;
static char done[4096];

static void astray(void)
{
    char byte = 'x', part[4];
    if (strcmp(how, "less") == 0)
        (void)!recv(talk, part, sizeof part, 0);
    if (strcmp(how, "blocks") == 0)
        (void)!recv(quiet, part, sizeof part, 0);
    if (strcmp(how, "spins") == 0)
        for (;;)
            (void)!recv(quiet, part, sizeof part, MSG_DONTWAIT);
    if (strcmp(how, "polls") == 0)
        for (;;) {
            struct pollfd p = {quiet, POLLIN, 0};
            (void)!poll(&p, 1, 10);
        }
    if (strcmp(how, "beats") == 0)
        for (;;) {
            (void)!send(quiet, &byte, 1, MSG_NOSIGNAL);
            (void)!recv(quiet, part, sizeof part, MSG_DONTWAIT);
            pause_ms(10);
        }
    for (;;)
        pause();
}

/* The highest round that was executed until now, in any incarnation. */
static void note(uint64_t round)
{
    uint64_t before = 0;
    /* Not open at a checkpoint: else a restart would put it back. */
    const int file = MUST(open(done, O_RDWR | O_CREAT, 0600));
    (void)!pread(file, &before, sizeof before, 0);
    EXPECT(pwrite(file, &round, sizeof round, 0), sizeof round);
    EXPECT(close(file), 0);
    if (may_stray && before >= round)
        astray();
}

static void serve(uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        uint64_t number = round;
        send_whole(talk, &number, sizeof number);
        recv_whole(talk, &number, sizeof number);
        EXPECT(number, round);
        char byte;
        while (recv(quiet, &byte, 1, MSG_DONTWAIT) > 0)
            ;
        pause_ms(5);
    }
}

static void call(uint64_t rounds)
{
    for (uint64_t round = 1; round <= rounds; round++) {
        uint64_t number;
        recv_whole(talk, &number, sizeof number);
        EXPECT(number, round);
        note(round);
        send_whole(talk, &number, sizeof number);
    }
}

/* As `meet` after `start`, but the ports in DIR may be those of the epoch before. */
static void find_each_other(char **argv)
{
    folder = argv[2];
    server = strcmp(getenv("RADIC_RANK"), "0") == 0;
    signal(SIGPIPE, SIG_IGN);
    alarm(LIMIT_S);
    if (server) {
        uint16_t port;
        listener = listen_at(INADDR_LOOPBACK, 128, &port);
        publish(port, 0);
        talk = meet();
        return;
    }
    for (talk = -1; talk == -1; pause_ms(5)) {
        find_server();
        const int fd = tcp(0);
        if (connect(fd, (struct sockaddr *)&server4, sizeof server4) == 0)
            talk = fd;
        else
            EXPECT(close(fd), 0);
    }
}

int main(int argc, char **argv)
{
    if (argc <= 4)
        return 2;
    how = argv[3];
    const uint64_t rounds = strtoull(argv[4], NULL, 10);
    /* Before the first call that a checkpoint may come in. */
    snprintf(done, sizeof done, "%s/done", argv[2]);
    may_stray = access(done, F_OK) != 0;
    find_each_other(argv);
    quiet = meet();
    (server ? serve : call)(rounds);
    printf("OK %s\n", server ? "server" : "client");
    return 0;
}
