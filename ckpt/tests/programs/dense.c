/* Memory that is given up, refilled, moved and guarded in all ways between increments. Signal USR1: the next step; USR2: look at everything, and end. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

enum { PAGE = 4096, BLOCK = 512, PAGES = 3 * BLOCK, GUARDED = 255 };

/* Each three blocks (of 2 MiB) of pages, and what is in each page: 0: nothing, or zeroes. */
enum { PAGE_GONE, BLOCK_GONE, MOST_GONE, ZEROED, WRITTEN, REPLACED, MOVED, HOLES, GUARDS, READ, LATER, HIDDEN, FORKED, HUGE, UNMAPPED, AREAS };
static char *area[AREAS];
static unsigned char content[AREAS][PAGES];

static void check(int fine, const char *what) {
    if (fine) return;
    printf("%s: %s\n", what, strerror(errno));
    exit(3);
}

static char *page(int which, int number) { return area[which] + (long)number * PAGE; }

static void fill(int which, int from, int to, int value) {
    for (int i = from; i < to; i++) {
        for (int at = 0; at < PAGE; at += 8) *(long *)(page(which, i) + at) = value ? (long)value << 32 | i : 0;
        content[which][i] = value;
    }
}

static void forget(int which, int from, int to) {
    check(!madvise(page(which, from), (long)(to - from) * PAGE, MADV_DONTNEED), "MADV_DONTNEED");
    memset(&content[which][from], 0, to - from);
}

/* Kernels before 6.13 have no guards. */
static void guard(int which, int from, int to, int advice) {
    int fine = !madvise(page(which, from), (long)(to - from) * PAGE, advice);
    check(fine || errno == EINVAL, "MADV_GUARD");
    for (int i = from; fine && i < to; i++)
        if (advice == MADV_GUARD_INSTALL || content[which][i] == GUARDED) content[which][i] = advice == MADV_GUARD_INSTALL ? GUARDED : 0;
}

static void map(int which) {
    char *all = mmap(0, (long)(PAGES + BLOCK) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(all != MAP_FAILED, "mmap");
    area[which] = (char *)(((long)all + BLOCK * PAGE - 1) & -(long)(BLOCK * PAGE));
    check(!mprotect(area[which], (long)PAGES * PAGE, PROT_READ | PROT_WRITE), "mprotect");
    madvise(area[which], (long)PAGES * PAGE, which == HUGE ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

static void begin(void) {
    for (int which = 0; which < AREAS; which++) {
        map(which);
        if (which != HOLES) fill(which, 0, PAGES, which + 1);
    }
    check(!mprotect(area[HIDDEN], (long)PAGES * PAGE, PROT_NONE), "mprotect");
}

static int nothing(int which, int number) { return *(volatile char *)page(which, number); }

static void first_step(void) {
    forget(PAGE_GONE, BLOCK + 100, BLOCK + 101);
    forget(BLOCK_GONE, BLOCK, 2 * BLOCK);
    forget(MOST_GONE, 1, PAGES - 1);
    forget(ZEROED, BLOCK, 2 * BLOCK), fill(ZEROED, BLOCK, BLOCK + 50, 0);
    forget(WRITTEN, BLOCK - 10, 2 * BLOCK + 10), fill(WRITTEN, BLOCK, BLOCK + 50, 77);
    check(mmap(page(REPLACED, BLOCK), BLOCK * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED, "mmap");
    memset(&content[REPLACED][BLOCK], 0, BLOCK);
    char *old = area[MOVED];
    map(MOVED);
    check(mremap(old, (long)PAGES * PAGE, (long)PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, area[MOVED]) != MAP_FAILED, "mremap");
    fill(HOLES, 5, 6, 78);
    guard(GUARDS, 10, BLOCK + 20, MADV_GUARD_INSTALL);
    forget(READ, 0, BLOCK + 5);
    for (int i = 0; i < BLOCK; i++) check(nothing(READ, i) == 0, "a page that was given up");
    forget(LATER, BLOCK, 2 * BLOCK);
    check(!mprotect(area[HIDDEN], (long)PAGES * PAGE, PROT_READ | PROT_WRITE), "mprotect");
    fill(HIDDEN, 3, 5, 79);
    check(!mprotect(area[HIDDEN], (long)PAGES * PAGE, PROT_NONE), "mprotect");
    forget(HUGE, BLOCK, 2 * BLOCK), forget(HUGE, 7, 20);
    pid_t child = fork();
    if (child == 0) {
        fill(FORKED, 0, PAGES, 80);
        _exit(0);
    }
    check(waitpid(child, 0, 0) == child, "waitpid");
    check(!munmap(page(UNMAPPED, BLOCK), BLOCK * PAGE), "munmap");
    memset(&content[UNMAPPED][BLOCK], GUARDED, BLOCK);
}

static void second_step(void) {
    fill(BLOCK_GONE, BLOCK + 300, BLOCK + 301, 81);
    fill(REPLACED, BLOCK + 7, BLOCK + 9, 82);
    fill(MOVED, 600, 602, 83);
    fill(HOLES, 6, 7, 84), fill(HOLES, BLOCK, 2 * BLOCK, 85);
    guard(GUARDS, 15, 25, MADV_GUARD_REMOVE);
    fill(READ, 3, 9, 86);
    fill(LATER, BLOCK, 2 * BLOCK, 87);
    fill(FORKED, 40, 42, 88);
    fill(HUGE, BLOCK, BLOCK + 1, 89), fill(HUGE, 2 * BLOCK + 9, 2 * BLOCK + 10, 90);
    forget(PAGE_GONE, 0, PAGES);
    forget(ZEROED, 0, BLOCK), fill(ZEROED, 0, BLOCK, 91);
}

static void third_step(void) {
    forget(LATER, BLOCK, 2 * BLOCK);
    forget(HOLES, 0, 2 * BLOCK);
    fill(PAGE_GONE, 17, 18, 92);
    guard(GUARDS, 0, PAGES, MADV_GUARD_REMOVE);
    check(mmap(page(UNMAPPED, BLOCK), BLOCK * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED, "mmap");
    memset(&content[UNMAPPED][BLOCK], 0, BLOCK);
    fill(UNMAPPED, BLOCK + 1, BLOCK + 2, 93);
}

/* The first page of each area that differs from what it should hold. The kernel reads them: a guard is an error for it, not a signal. */
static void look(void) {
    static char copy[PAGE];
    int ends[2];
    check(!pipe(ends), "pipe");
    check(!mprotect(area[HIDDEN], (long)PAGES * PAGE, PROT_READ), "mprotect");
    for (int which = 0; which < AREAS; which++)
        for (int i = 0; i < PAGES; i++) {
            int value = content[which][i], there = write(ends[1], page(which, i), PAGE) == PAGE;
            if (there && read(ends[0], copy, PAGE) != PAGE) exit(4);
            int wrong = there == (value == GUARDED);
            for (int at = 0; there && at < PAGE; at += 8) wrong |= *(long *)(copy + at) != (value ? (long)value << 32 | i : 0);
            if (wrong) {
                printf("area %d page %d is not %d\n", which, i, value);
                break;
            }
        }
}

int main(void) {
    static void (*const step[])(void) = {first_step, second_step, third_step};
    sigset_t signals;
    sigemptyset(&signals), sigaddset(&signals, SIGUSR1), sigaddset(&signals, SIGUSR2);
    sigprocmask(SIG_BLOCK, &signals, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    begin();
    printf("ready\n");
    for (unsigned steps = 0;;) {
        int signal;
        if (sigwait(&signals, &signal)) continue;
        if (signal == SIGUSR2) break;
        if (steps < sizeof step / sizeof *step) step[steps]();
        printf("step %u\n", ++steps);
    }
    look();
    printf("done\n");
    return 0;
}
