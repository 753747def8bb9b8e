/* libgomp: loops with a reduction, a critical section, thread-private data and tasks, in a team of four. */
#include <omp.h>
#include <stdint.h>
#include <stdio.h>

static uint64_t mine;
#pragma omp threadprivate(mine)

static uint64_t step(uint64_t hash, int times) {
    for (int i = 0; i < times; i++) hash = hash * 6364136223846793005ULL + i;
    return hash;
}

static uint64_t tree(int depth) {
    if (depth == 0) return step(1, 200);
    uint64_t left, right;
#pragma omp task shared(left)
    left = tree(depth - 1);
#pragma omp task shared(right)
    right = tree(depth - 1);
#pragma omp taskwait
    return left * 31 + right;
}

int main(void) {
    uint64_t sum = 0, critical = 0, tasks = 0, privates = 0;
    printf("ready\n");
    fflush(stdout);
    omp_set_num_threads(4);
    omp_set_dynamic(0);
    for (int round = 0; round < 400; round++) {
#pragma omp parallel for reduction(+ : sum) schedule(dynamic, 16)
        for (int i = 0; i < 4000; i++) sum += step(i + round, 1500);
#pragma omp parallel
        {
            mine += step(omp_get_thread_num(), 1000);
#pragma omp barrier
#pragma omp critical
            critical += mine;
#pragma omp single
            tasks += tree(6);
        }
    }
#pragma omp parallel reduction(+ : privates)
    privates += mine;
    printf("%lu %lu %lu %lu\n", sum, critical, tasks, privates);
    return sum == 0;
}
