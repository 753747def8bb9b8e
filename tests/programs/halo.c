/* A seven-point stencil on a cube, cut in three dimensions: each step exchanges the six faces of every block.
 *
 * Each new value depends on seven old ones only, so the checksum is the same to the bit for any number of ranks. Rank 0 computes the whole
 * cube alone (unless --alone 0) and compares. With --json the time of the steps is printed, too.
 */
#include "check.h"

struct block {
    int cells[3]; /* without the halo */
    int first[3]; /* in the cube */
    double *now, *next;
};

static size_t at(const struct block *b, int x, int y, int z)
{
    return ((size_t)x * (size_t)(b->cells[1] + 2) + (size_t)y) * (size_t)(b->cells[2] + 2) + (size_t)z;
}

static uint64_t place_in_cube(const struct block *b, int x, int y, int z)
{
    return ((uint64_t)(b->first[0] + x) << 42) ^ ((uint64_t)(b->first[1] + y) << 21) ^ (uint64_t)(b->first[2] + z);
}

/* Some relief inside, zero outside. */
static struct block make_block(int n, const int parts[3], const int place[3])
{
    struct block b;
    size_t total = sizeof(double);
    for (int d = 0; d < 3; d++) {
        b.first[d] = (int)((long)n * place[d] / parts[d]);
        b.cells[d] = (int)((long)n * (place[d] + 1) / parts[d]) - b.first[d];
        total *= (size_t)(b.cells[d] + 2);
    }
    b.now = allocate(total);
    b.next = allocate(total);
    memset(b.now, 0, total);
    memset(b.next, 0, total);
    for (int x = 1; x <= b.cells[0]; x++)
        for (int y = 1; y <= b.cells[1]; y++)
            for (int z = 1; z <= b.cells[2]; z++)
                b.now[at(&b, x, y, z)] = (double)(mix(place_in_cube(&b, x, y, z)) % 1000);
    return b;
}

static void step(struct block *b)
{
    for (int x = 1; x <= b->cells[0]; x++)
        for (int y = 1; y <= b->cells[1]; y++)
            for (int z = 1; z <= b->cells[2]; z++) {
                const double *u = b->now;
                const double around = ((u[at(b, x - 1, y, z)] + u[at(b, x + 1, y, z)]) + (u[at(b, x, y - 1, z)] + u[at(b, x, y + 1, z)])) +
                                      (u[at(b, x, y, z - 1)] + u[at(b, x, y, z + 1)]);
                b->next[at(b, x, y, z)] = 0.5 * u[at(b, x, y, z)] + around / 12;
            }
    double *swap = b->now;
    b->now = b->next;
    b->next = swap;
}

/* The sum over all cells of a hash of place and bits: any order of summation gives the same. */
static uint64_t checksum(const struct block *b)
{
    uint64_t sum = 0;
    for (int x = 1; x <= b->cells[0]; x++)
        for (int y = 1; y <= b->cells[1]; y++)
            for (int z = 1; z <= b->cells[2]; z++) {
                uint64_t bits;
                memcpy(&bits, &b->now[at(b, x, y, z)], sizeof bits);
                sum += mix(bits ^ mix(place_in_cube(b, x, y, z)));
            }
    return sum;
}

/* The layer of a block at this place in one dimension. */
static MPI_Datatype layer(const struct block *b, int dimension, int place)
{
    int whole[3], part[3], begin[3];
    for (int d = 0; d < 3; d++) {
        whole[d] = b->cells[d] + 2;
        part[d] = d == dimension ? 1 : b->cells[d];
        begin[d] = d == dimension ? place : 1;
    }
    MPI_Datatype type;
    MPI_Type_create_subarray(3, whole, part, begin, MPI_ORDER_C, MPI_DOUBLE, &type);
    MPI_Type_commit(&type);
    return type;
}

/* Of each dimension: what comes from below and above, and what goes there. */
static void make_layers(const struct block *b, MPI_Datatype layers[3][4])
{
    for (int d = 0; d < 3; d++) {
        const int places[4] = {0, b->cells[d] + 1, 1, b->cells[d]};
        for (int i = 0; i < 4; i++)
            layers[d][i] = layer(b, d, places[i]);
    }
}

static void exchange_faces(struct block *b, MPI_Comm grid, MPI_Datatype layers[3][4])
{
    MPI_Request requests[12];
    int n = 0;
    for (int d = 0; d < 3; d++) {
        int below, above;
        MPI_Cart_shift(grid, d, 1, &below, &above);
        MPI_Irecv(b->now, 1, layers[d][0], below, 2 * d, grid, &requests[n++]);
        MPI_Irecv(b->now, 1, layers[d][1], above, 2 * d + 1, grid, &requests[n++]);
        MPI_Isend(b->now, 1, layers[d][2], below, 2 * d + 1, grid, &requests[n++]);
        MPI_Isend(b->now, 1, layers[d][3], above, 2 * d, grid, &requests[n++]);
    }
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
}

static void compare_with_one(int n, long steps, uint64_t sum)
{
    struct block whole = make_block(n, (int[]){1, 1, 1}, (int[]){0, 0, 0});
    for (long i = 0; i < steps; i++)
        step(&whole);
    const uint64_t expected = checksum(&whole);
    CHECK(sum == expected, "checksum %016llx, alone %016llx", (unsigned long long)sum, (unsigned long long)expected);
    free(whole.now);
    free(whole.next);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"size", 64, 1}, {"steps", 100, 1}, {"alone", 1, 0}, {"json", 0, FLAG}};
    start(argc, argv, options, 4, 1);
    const int n = (int)options[0].value;
    const long steps = options[1].value;
    int parts[3] = {0, 0, 0}, place[3];
    MPI_Dims_create(size, 3, parts);
    CHECK(n >= parts[0] && n <= 1000, "--size is %d to 1000 with %d ranks, not %d", parts[0], size, n);
    MPI_Comm grid;
    MPI_Cart_create(MPI_COMM_WORLD, 3, parts, (int[]){0, 0, 0}, 0, &grid);
    MPI_Cart_coords(grid, rank, 3, place);
    struct block b = make_block(n, parts, place);
    MPI_Datatype layers[3][4];
    make_layers(&b, layers);
    MPI_Barrier(grid);
    const double before = MPI_Wtime();
    for (long i = 0; i < steps; i++) {
        exchange_faces(&b, grid, layers);
        step(&b);
    }
    MPI_Barrier(grid);
    if (rank == 0 && options[3].value)
        printf("{\"steps\":%ld,\"seconds\":%.6f}\n", steps, MPI_Wtime() - before);
    uint64_t mine = checksum(&b), sum;
    MPI_Reduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, grid);
    if (rank == 0 && options[2].value)
        compare_with_one(n, steps, sum);
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 4; i++)
            MPI_Type_free(&layers[d][i]);
    MPI_Comm_free(&grid);
    free(b.now);
    free(b.next);
    if (rank == 0)
        printf("OK halo %d x %d x %d %ld steps checksum %016llx\n", n, n, n, steps, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
