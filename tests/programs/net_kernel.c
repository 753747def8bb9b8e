/* Rank 1 asks the kernel what no program can compute: the time, what was used of the processor, random bytes. What it sends depends on all that it was told; rank 0 sees by the bytes
 * whether a message goes on as it has begun. Times do not go back, whatever machine they come from. DIR/sent says that some messages have come. net_kernel rank DIR. No MPI.
 */
#define _GNU_SOURCE
#include "net.h"
#include <fcntl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/times.h>

/* A draw of LONG is more than one outcome holds. */
enum { MESSAGES = 300, SOME = 30, PAUSE_MS = 10, ROW = 50, SHORT = 24, LONG = 5000 };

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

/* A number that depends on what was used of the processor. */
static uint64_t read_usage(void)
{
    static int64_t last_used, last_ticks, last_clock;
    struct rusage usage;
    struct tms ticks;
    EXPECT(getrusage(RUSAGE_SELF, &usage), 0);
    const int64_t used = usage.ru_utime.tv_sec * 1000000LL + usage.ru_utime.tv_usec;
    const int64_t now = times(&ticks), clocked = clock();
    CHECK(used >= last_used && ticks.tms_utime >= last_ticks && clocked >= last_clock);
    CHECK(usage.ru_utime.tv_usec >= 0 && usage.ru_utime.tv_usec < 1000000);
    last_used = used;
    last_ticks = ticks.tms_utime;
    last_clock = clocked;
    return mix(mix((uint64_t)used ^ (uint64_t)usage.ru_maxrss) ^ (uint64_t)now ^ (uint64_t)clocked);
}

static uint64_t of_bytes(uint64_t all, const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        all = mix(all ^ bytes[i]);
    return all;
}

/* A number that depends on random bytes, of all that gives some. */
static uint64_t draw(void)
{
    static int source = -1;
    unsigned char bytes[LONG];
    if (source < 0)
        CHECK((source = open("/dev/urandom", O_RDONLY)) >= 0);
    EXPECT(getrandom(bytes, LONG, 0), LONG);
    uint64_t all = of_bytes(1, bytes, LONG);
    EXPECT(getentropy(bytes, SHORT), 0);
    EXPECT(read(source, bytes + SHORT, SHORT), SHORT);
    FILE *stream = fopen("/dev/urandom", "r");
    CHECK(stream != NULL);
    EXPECT(fread(bytes + 2 * SHORT, 1, SHORT, stream), SHORT);
    EXPECT(fclose(stream), 0);
#if __GLIBC_PREREQ(2, 36)
    arc4random_buf(bytes + 3 * SHORT, SHORT);
    all = mix(all ^ arc4random() ^ arc4random_uniform(1000));
    return of_bytes(all, bytes, 4 * SHORT);
#else
    return of_bytes(all, bytes, 3 * SHORT);
#endif
}

int main(int argc, char **argv)
{
    start(argc, argv);
    current = "kernel";
    for (int i = 0; i < MESSAGES; i++)
        if (server) {
            const uint64_t seed = hear();
            recv_pattern(control, 1 + seed % 1000, seed);
            tell(seed);
            if (i == SOME)
                put("sent");
            pause_ms(PAUSE_MS);
        } else {
            const uint64_t seed = mix(read_clocks() ^ read_usage() ^ draw());
            tell(seed);
            send_pattern(control, 1 + seed % 1000, seed);
            EXPECT(hear(), seed);
        }
    together();
    printf("%s: all numbers\n", server ? "server" : "client");
    return 0;
}
