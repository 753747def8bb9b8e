/* A process that ends while other threads are in the middle of calls: net_ends rank DIR HOW.
 *
 * Rank 0 is the server. It has threads in recv, poll and accept, which nothing ever comes for, and one that talks with the client all the time; then it
 * ends in the way that HOW names, with code CODE. The client sees each of its connections end, and ends with 0.
 */
#include "net.h"

#include <pthread.h>

enum { CODE = 7, TALKS = 20 };

static int talk, quiet, polled;
static const char *how;
static _Atomic int talked;

static void *in_recv(void *none)
{
    char byte;
    while (recv(quiet, &byte, 1, 0) > 0)
        ;
    pause();
    return none;
}

static void *in_poll(void *none)
{
    for (;;) {
        struct pollfd p = {polled, POLLIN, 0};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            pause();
    }
    return none;
}

static void *in_accept(void *none)
{
    while (accept(listener, NULL, NULL) >= 0)
        ;
    pause();
    return none;
}

static void *in_talk(void *none)
{
    char byte = 'x';
    while (send(talk, &byte, 1, MSG_NOSIGNAL) == 1 && recv(talk, &byte, 1, 0) == 1)
        talked++;
    pause();
    return none;
}

static void end(void)
{
    if (strcmp(how, "_exit") == 0)
        _exit(CODE);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(CODE);
    exit(CODE);
}

static void *in_end(void *none)
{
    while (talked < TALKS)
        sched_yield();
    end();
    return none;
}

static void handle(int signal)
{
    (void)signal;
    if (strcmp(how, "signal_exit") == 0)
        exit(CODE);
    _exit(CODE);
}

static void begin(void *(*run)(void *))
{
    pthread_t thread;
    EXPECT(pthread_create(&thread, NULL, run, NULL), 0);
}

static int serve(void)
{
    begin(in_recv);
    begin(in_poll);
    begin(in_accept);
    begin(in_talk);
    if (strcmp(how, "thread") == 0) {
        begin(in_end);
        in_recv(NULL);
    }
    if (strcmp(how, "pthread_exit") == 0) {
        begin(in_end);
        pthread_exit(NULL);
    }
    while (talked < TALKS)
        sched_yield();
    printf("talked\n");
    if (strncmp(how, "signal", 6) == 0) {
        EXPECT(signal(SIGTERM, handle) == SIG_ERR, 0);
        EXPECT(kill(getpid(), SIGTERM), 0);
        in_recv(NULL);
    }
    if (strcmp(how, "return") == 0)
        return CODE;
    end();
    return 1;
}

static int call(void)
{
    char byte;
    while (recv(talk, &byte, 1, 0) == 1 && send(talk, &byte, 1, MSG_NOSIGNAL) == 1)
        ;
    while (recv(quiet, &byte, 1, 0) > 0)
        ;
    while (recv(polled, &byte, 1, 0) > 0)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    how = argc > 3 ? argv[3] : "";
    start(argc, argv);
    talk = meet();
    quiet = meet();
    polled = meet();
    return server ? serve() : call();
}
