/* Rank 1 reads clocks, and what it sends depends on all that they said; rank 0 sees by the bytes whether a message goes on as it has begun. Times do not go back, whatever machine they
 * come from. DIR/sent says that some messages have come. net_clock rank DIR. No MPI.
 */
#define _GNU_SOURCE
#include "net.h"

enum { MESSAGES = 300, SOME = 30, PAUSE_MS = 10, ROW = 50 };

static int64_t of_clock(clockid_t clock)
{
    struct timespec t;
    EXPECT(clock_gettime(clock, &t), 0);
    CHECK(t.tv_nsec >= 0 && t.tv_nsec < 1000000000);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A number that depends on all clocks, and on each of a row of readings. */
static uint64_t read_clocks(void)
{
    static int64_t last;
    struct timeval day;
    uint64_t all = mix((uint64_t)of_clock(CLOCK_REALTIME) ^ (uint64_t)of_clock(CLOCK_PROCESS_CPUTIME_ID));
    EXPECT(gettimeofday(&day, NULL), 0);
    const time_t now = time(NULL);
    CHECK(day.tv_sec - now >= 0 && day.tv_sec - now <= 1);
    all = mix(all ^ (uint64_t)day.tv_usec);
    for (int i = 0; i < ROW; i++) {
        const int64_t next = of_clock(CLOCK_MONOTONIC);
        CHECK(next >= last);
        last = next;
        all = mix(all ^ (uint64_t)next);
    }
    return all;
}

int main(int argc, char **argv)
{
    start(argc, argv);
    current = "clock";
    for (int i = 0; i < MESSAGES; i++)
        if (server) {
            const uint64_t seed = hear();
            recv_pattern(control, 1 + seed % 1000, seed);
            tell(seed);
            if (i == SOME)
                put("sent");
            pause_ms(PAUSE_MS);
        } else {
            const uint64_t seed = read_clocks();
            tell(seed);
            send_pattern(control, 1 + seed % 1000, seed);
            EXPECT(hear(), seed);
        }
    together();
    printf("%s: all numbers\n", server ? "server" : "client");
    return 0;
}
