/* Servers with a thread for each request: see net.h. */
#include "net.h"

#include <pthread.h>

enum { REQUESTS = 300, CROWD = 100, ROUNDS = 3, SERVERS = 4, TURNS = 1600 };

/* Answers one request, and ends with its connection. */
static void *answer(void *fd)
{
    const int connection = (int)(intptr_t)fd;
    uint64_t number;
    recv_whole(connection, &number, sizeof number);
    number = mix(number);
    send_whole(connection, &number, sizeof number);
    expect_end(connection);
    EXPECT(close(connection), 0);
    return NULL;
}

static pthread_t begin(void)
{
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, answer, (void *)(intptr_t)meet()), 0);
    return thread;
}

static void ask(int connection, uint64_t number)
{
    uint64_t answered;
    send_whole(connection, &number, sizeof number);
    recv_whole(connection, &answered, sizeof answered);
    EXPECT(answered, mix(number));
}

/* Far more threads than there are at once. */
static void one_after_the_other(void)
{
    for (uint64_t number = 0; number < REQUESTS; number++) {
        if (server) {
            EXPECT(pthread_join(begin(), NULL), 0);
        } else {
            const int connection = meet();
            ask(connection, number);
            EXPECT(close(connection), 0);
        }
    }
}

/* Many at once, which nobody waits for, and then as many again. */
static void crowds(void)
{
    static int connections[CROWD];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CROWD; i++) {
            if (server)
                EXPECT(pthread_detach(begin()), 0);
            else
                ask(connections[i] = meet(), (uint64_t)i);
        }
        if (!server)
            for (int i = 0; i < CROWD; i++)
                EXPECT(close(connections[i]), 0);
        together();
    }
}

static void *echo(void *fd)
{
    const int connection = (int)(intptr_t)fd;
    uint64_t number;
    while (recv(connection, &number, sizeof number, MSG_WAITALL) == sizeof number) {
        number = mix(number);
        send_whole(connection, &number, sizeof number);
    }
    return NULL;
}

/* A few threads, each of which waits for its own connection, while the client asks now one and now another. Some end meanwhile, and others take their place. It takes long enough
 * for checkpoints, and for a death. */
static void turns(void)
{
    static int connections[SERVERS];
    static pthread_t threads[SERVERS];
    for (int turn = 0; turn < TURNS; turn++) {
        const int i = (int)(mix((uint64_t)turn) % SERVERS), anew = turn % 50 == 0;
        if (anew) {
            if (server) {
                if (turn >= 50 * SERVERS)
                    EXPECT(pthread_join(threads[turn / 50 % SERVERS], NULL), 0);
                const int connection = meet();
                EXPECT(pthread_create(&threads[turn / 50 % SERVERS], NULL, echo, (void *)(intptr_t)connection), 0);
            } else {
                if (turn >= 50 * SERVERS)
                    EXPECT(close(connections[turn / 50 % SERVERS]), 0);
                connections[turn / 50 % SERVERS] = meet();
            }
        }
        if (!server && turn >= 50 * SERVERS) {
            ask(connections[i], (uint64_t)turn);
            pause_ms(2);
        }
    }
    if (!server)
        for (int i = 0; i < SERVERS; i++)
            EXPECT(close(connections[i]), 0);
    else
        for (int i = 0; i < SERVERS; i++)
            EXPECT(pthread_join(threads[i], NULL), 0);
    together();
}

static const struct test tests[] = {
    {"turns", turns, 1},
    {"one_after_the_other", one_after_the_other, 0},
    {"crowds", crowds, 0},
};

int main(int argc, char **argv)
{
    return RUN_CASES(tests);
}
