/* Rank 0 sends numbers, and rank 1 receives them, until rank 1 kills itself: net_stuck rank DIR. No MPI.
 *
 * When there is a file DIR/go rank 1 receives some more numbers, makes a file DIR/stuck, and dies. If it is brought back, it finds that file where there was none, and waits for ever
 * instead of receiving what its log has for it. If the job restarts from its beginning,
 * rank 0 removes both files, and all numbers come.
 */
#define _GNU_SOURCE
#include "net.h"

enum { NUMBERS = 500, MORE = 20, PAUSE_MS = 10 };

static int is_there(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

static void take_away(const char *in, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", in, name);
    unlink(path);
}

static void receive(void)
{
    int more = 0;
    for (uint64_t number = 0; number < NUMBERS; number++) {
        EXPECT(hear(), number);
        while (is_there("stuck"))
            pause();
        if (is_there("go") && ++more == MORE) {
            put("stuck");
            take_away(folder, "ports"); /* In the next incarnation it must call no process of this one. */
            kill(getpid(), SIGKILL);
        }
    }
}

int main(int argc, char **argv)
{
    const char *number = getenv("RADIC_RANK");
    if (argc > 2 && number != NULL && strcmp(number, "0") == 0) {
        take_away(argv[2], "go");
        take_away(argv[2], "stuck");
    }
    start(argc, argv);
    alarm(0);
    current = "numbers";
    for (uint64_t sent = 0; server && sent < NUMBERS; sent++) {
        tell(sent);
        pause_ms(PAUSE_MS);
    }
    if (!server)
        receive();
    printf("%s: all numbers\n", server ? "server" : "client");
    return 0;
}
