/* Has something that a restart opens again by its name or its number, says "ready", and shows it when there is a file "go".
 *   planted shared FILE: a shared mapping, whose descriptor is closed.   planted file FILE: a descriptor for reading and writing.
 *   planted read FILE: a descriptor for reading.                         planted library FILE: a function of a library.
 *   planted segment: a segment of System V, whose number follows "ready". To what it holds a mark is added at the end. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

static const char secret[] = "what the program knows";

static void *check(void *got, const char *what) {
    if (got && got != MAP_FAILED) return got;
    perror(what);
    exit(3);
}

int main(int count, char **words) {
    if (count < 2) return 2;
    const char *what = words[1], *path = count > 2 ? words[2] : "";
    int fd = -1, segment = -1, (*answer)(void) = 0;
    char *memory = 0, text[64] = {0};
    umask(0);
    if (!strcmp(what, "shared")) {
        if ((fd = open(path, O_RDWR | O_CREAT, 0600)) < 0 || ftruncate(fd, 4096)) check(0, path);
        memory = check(mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), path);
        strcpy(memory, secret);
        close(fd);
    } else if (!strcmp(what, "file")) {
        if ((fd = open(path, O_RDWR | O_CREAT, 0664)) < 0 || pwrite(fd, secret, sizeof secret, 0) < 0) check(0, path);
    } else if (!strcmp(what, "read")) {
        if ((fd = open(path, O_RDONLY)) < 0) check(0, path);
    } else if (!strcmp(what, "library")) {
        answer = check(dlsym(check(dlopen(path, RTLD_NOW), path), "answer"), path);
    } else {
        if ((segment = shmget(IPC_PRIVATE, 4096, 0600)) < 0) check(0, "a segment");
        memory = check(shmat(segment, 0, 0), "a segment");
        strcpy(memory, secret);
    }
    printf("ready\n");
    if (segment >= 0) printf("%d\n", segment);
    fflush(stdout);
    while (access("go", F_OK)) usleep(1000);
    if (memory) printf("%s\n", strcat(memory, "!"));
    else if (answer) printf("%d\n", answer());
    else if (pread(fd, text, sizeof text - 1, 0) >= 0) printf("%s\n", text);
    return 5;
}
