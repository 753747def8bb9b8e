/* A segment of System V that every user may attach. (Which number it gets root has said already:
 * shm_next_id.) Says "made" and its number, and what the segment holds when there is a line on standard input. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/shm.h>

int main(void) {
    int segment = shmget(IPC_PRIVATE, 4096, 0666);
    char *memory = segment < 0 ? 0 : shmat(segment, 0, 0);
    if (!memory || memory == (void *)-1) return 3;
    printf("made %d\n", segment), fflush(stdout);
    getchar();
    printf("holds %s\n", memory);
    return 0;
}
