/* A segment of System V and an unlinked file in /dev/shm that have the same number: two objects, which stay two. Prints "far" if the numbers are too far apart. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 3000000, SIZE = 8192 };

static int file(void) {
    int fd = open("/dev/shm", O_TMPFILE | O_RDWR, 0600);
    if (fd < 0 || ftruncate(fd, SIZE)) perror("/dev/shm");
    return fd;
}

static unsigned long number(int fd) {
    struct stat of;
    return fstat(fd, &of) ? 0 : of.st_ino;
}

static int is_all(const char *memory, char what) {
    for (int i = 0; i < SIZE; i++)
        if (memory[i] != what) return 0;
    return 1;
}

int main(void) {
    int fd = file(), id = shmget(IPC_PRIVATE, SIZE, 0600), tries = 0;
    /* Both only grow. */
    while (number(fd) != (unsigned long)id && ++tries < TRIES) {
        if (number(fd) < (unsigned long)id) {
            close(fd);
            fd = file();
        } else {
            shmctl(id, IPC_RMID, NULL);
            id = shmget(IPC_PRIVATE, SIZE, 0600);
        }
    }
    /* The file is below the segment, and is met first. */
    char *attached = shmat(id, NULL, 0), *mapped = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    shmctl(id, IPC_RMID, NULL);
    close(fd);
    if (mapped == MAP_FAILED || attached == (void *)-1) return 2;
    memset(mapped, 'm', SIZE);
    memset(attached, 'a', SIZE);
    printf("ready\n");
    fflush(stdout);
    if (tries == TRIES) {
        printf("far\n");
        return 0;
    }
    for (int i = 0; i < 100; i++) usleep(10000);
    memset(mapped, 'n', SIZE / 2);
    if (!is_all(attached, 'a')) printf("the segment holds what the file does\n");
    memset(attached, 'b', SIZE);
    if (mapped[0] != 'n' || mapped[SIZE - 1] != 'm') printf("the file holds what the segment does\n");
    if (shmdt(attached)) perror("shmdt");
    printf("two\n");
    return 0;
}
