/* Jacobi iteration of Laplace's equation on a square, cut in rows and columns, with halo exchange.
 *
 * Each new value depends on four old ones only, so result, checksum and residual are the same to the bit for any number of ranks. Rank 0
 * computes the whole square alone (unless --alone 0) and compares. With --json the time of the iterations is printed, too; with
 * --progress P a line every P iterations.
 */
#include "check.h"

struct block {
    int rows, columns;       /* without the halo */
    int first_row, first_column; /* in the square */
    double *now, *next;      /* (rows + 2) x (columns + 2), row by row */
};

static double *cell(const struct block *b, double *grid, int row, int column)
{
    return &grid[(size_t)row * (size_t)(b->columns + 2) + (size_t)column];
}

/* The boundary: hot on top, cold elsewhere, with some relief. Inside: zero. */
static double initial(int row, int column, int n)
{
    const int outside = row < 0 || column < 0 || row >= n || column >= n;
    return outside ? (double)(mix((uint64_t)(row + 1) * 65536 + (uint64_t)(column + 1)) % 1000) / (row < 0 ? 10 : 1000) : 0;
}

static struct block make_block(int n, int parts[2], int place[2])
{
    struct block b;
    b.first_row = (int)((long)n * place[0] / parts[0]);
    b.first_column = (int)((long)n * place[1] / parts[1]);
    b.rows = (int)((long)n * (place[0] + 1) / parts[0]) - b.first_row;
    b.columns = (int)((long)n * (place[1] + 1) / parts[1]) - b.first_column;
    const size_t bytes = (size_t)(b.rows + 2) * (size_t)(b.columns + 2) * sizeof(double);
    b.now = allocate(bytes);
    b.next = allocate(bytes);
    for (int r = 0; r < b.rows + 2; r++)
        for (int c = 0; c < b.columns + 2; c++)
            *cell(&b, b.now, r, c) = *cell(&b, b.next, r, c) = initial(b.first_row + r - 1, b.first_column + c - 1, n);
    return b;
}

/* One step; returns the largest change. */
static double step(struct block *b)
{
    double change = 0;
    for (int r = 1; r <= b->rows; r++)
        for (int c = 1; c <= b->columns; c++) {
            const double value = 0.25 * ((*cell(b, b->now, r - 1, c) + *cell(b, b->now, r + 1, c)) +
                                         (*cell(b, b->now, r, c - 1) + *cell(b, b->now, r, c + 1)));
            const double old = *cell(b, b->now, r, c), difference = value > old ? value - old : old - value;
            change = difference > change ? difference : change;
            *cell(b, b->next, r, c) = value;
        }
    double *swap = b->now;
    b->now = b->next;
    b->next = swap;
    return change;
}

/* The sum over all cells of a hash of place and bits: any order of summation gives the same. */
static uint64_t checksum(struct block *b, int n)
{
    uint64_t sum = 0;
    for (int r = 1; r <= b->rows; r++)
        for (int c = 1; c <= b->columns; c++) {
            uint64_t bits;
            memcpy(&bits, cell(b, b->now, r, c), sizeof bits);
            sum += mix(bits ^ mix((uint64_t)(b->first_row + r) * (uint64_t)n + (uint64_t)(b->first_column + c)));
        }
    return sum;
}

static void exchange_halo(struct block *b, MPI_Comm grid, MPI_Datatype column)
{
    int up, down, left, right, n = 0;
    MPI_Cart_shift(grid, 0, 1, &up, &down);
    MPI_Cart_shift(grid, 1, 1, &left, &right);
    MPI_Request requests[8];
    MPI_Irecv(cell(b, b->now, 0, 1), b->columns, MPI_DOUBLE, up, 1, grid, &requests[n++]);
    MPI_Irecv(cell(b, b->now, b->rows + 1, 1), b->columns, MPI_DOUBLE, down, 2, grid, &requests[n++]);
    MPI_Irecv(cell(b, b->now, 1, 0), 1, column, left, 3, grid, &requests[n++]);
    MPI_Irecv(cell(b, b->now, 1, b->columns + 1), 1, column, right, 4, grid, &requests[n++]);
    MPI_Isend(cell(b, b->now, b->rows, 1), b->columns, MPI_DOUBLE, down, 1, grid, &requests[n++]);
    MPI_Isend(cell(b, b->now, 1, 1), b->columns, MPI_DOUBLE, up, 2, grid, &requests[n++]);
    MPI_Isend(cell(b, b->now, 1, b->columns), 1, column, right, 3, grid, &requests[n++]);
    MPI_Isend(cell(b, b->now, 1, 1), 1, column, left, 4, grid, &requests[n++]);
    MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
}

static void compare_with_one(int n, long iterations, double residual, uint64_t sum)
{
    struct block whole = make_block(n, (int[]){1, 1}, (int[]){0, 0});
    double change = 0;
    for (long i = 0; i < iterations; i++)
        change = step(&whole);
    const uint64_t expected = checksum(&whole, n);
    CHECK(sum == expected, "checksum %016llx, alone %016llx", (unsigned long long)sum, (unsigned long long)expected);
    CHECK(residual == change, "residual %.17g, alone %.17g", residual, change);
    free(whole.now);
    free(whole.next);
}

int main(int argc, char **argv)
{
    struct option options[] = {{"size", 300, 1}, {"iterations", 1000, 1}, {"alone", 1, 0}, {"json", 0, FLAG}, {"progress", 0, 0}};
    start(argc, argv, options, 5, 1);
    const int n = (int)options[0].value;
    const long iterations = options[1].value, progress = options[4].value;

    int parts[2] = {0, 0}, place[2];
    MPI_Dims_create(size, 2, parts);
    CHECK(n <= 30000 && n >= parts[0] && n >= parts[1], "--size is %d to 30000 with %d ranks, not %d", parts[0], size, n);
    MPI_Comm grid;
    MPI_Cart_create(MPI_COMM_WORLD, 2, parts, (int[]){0, 0}, 0, &grid);
    MPI_Cart_coords(grid, rank, 2, place);
    struct block b = make_block(n, parts, place);
    MPI_Datatype column;
    MPI_Type_vector(b.rows, 1, b.columns + 2, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);

    double change = 0, residual;
    MPI_Barrier(grid);
    const double before = MPI_Wtime();
    for (long i = 0; i < iterations; i++) {
        exchange_halo(&b, grid, column);
        change = step(&b);
        if (i % 50 == 0 || i + 1 == iterations)
            MPI_Allreduce(&change, &residual, 1, MPI_DOUBLE, MPI_MAX, grid);
        if (rank == 0 && progress && (i + 1) % progress == 0) {
            printf("iteration %ld of %ld, residual %.6e\n", i + 1, iterations, residual);
            fflush(stdout);
        }
    }
    /* The last iteration has an all-reduce: nobody is much earlier than the others. */
    if (rank == 0 && options[3].value)
        printf("{\"iterations\":%ld,\"seconds\":%.6f}\n", iterations, MPI_Wtime() - before);
    uint64_t mine = checksum(&b, n), sum;
    MPI_Reduce(&mine, &sum, 1, MPI_UINT64_T, MPI_SUM, 0, grid);
    if (rank == 0 && options[2].value)
        compare_with_one(n, iterations, residual, sum);
    MPI_Type_free(&column);
    MPI_Comm_free(&grid);
    free(b.now);
    free(b.next);
    if (rank == 0)
        printf("OK jacobi %d x %d %ld iterations residual %.10e checksum %016llx\n", n, n, iterations, residual, (unsigned long long)sum);
    MPI_Finalize();
    return 0;
}
