/* One thread, a number that depends on every step. Exit code 7. */
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

int main(void) {
    uint64_t hash = 1;
    printf("ready\n");
    fflush(stdout);
    for (int i = 0; i < 130; i++) {
        for (int k = 0; k < 1000000; k++) hash = hash * 6364136223846793005ULL + i;
        usleep(10000);
    }
    printf("%lu\n", hash);
    return 7;
}
