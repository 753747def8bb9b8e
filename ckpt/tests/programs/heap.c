/* 2 GiB of heap (brk), all of it in use; some pages change meanwhile. With an argument slowly (2 GiB take their time to be saved), until
   there is a file of that name. */
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCKS = 2048, WORDS = (1 << 20) / 8 };

int main(int count, char **arguments) {
    static uint64_t *blocks[BLOCKS];
    uint64_t hash = 1, sum = 0;
    char *begin = sbrk(0);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    for (int block = 0; block < BLOCKS; block++) {
        if (!(blocks[block] = malloc(WORDS * 8))) return 2;
        for (int word = 0; word < WORDS; word++) blocks[block][word] = hash = hash * 6364136223846793005ULL + block;
    }
    if ((char *)sbrk(0) - begin < (ptrdiff_t)BLOCKS * WORDS * 8) return 3;
    printf("ready\n");
    fflush(stdout);
    for (int round = 0; round < 2500; round++) {
        for (int page = 0; page < 200; page++) {
            hash = hash * 6364136223846793005ULL + round;
            blocks[hash >> 53][hash % WORDS] ^= hash;
        }
        if (count > 1 && access(arguments[1], F_OK)) usleep(15000);
    }
    for (int block = 0; block < BLOCKS; block++) {
        for (int word = 0; word < WORDS; word++) sum = sum * 31 + blocks[block][word];
        free(blocks[block]);
    }
    printf("%lu\n", sum);
    return 0;
}
