/* One rank calls MPI_Abort while the others wait: the job must end with its code, and nobody may be left. */
#include "check.h"

int main(int argc, char **argv)
{
    struct option options[] = {{"code", 7, 1}};
    start(argc, argv, options, 1, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1)
        MPI_Abort(MPI_COMM_WORLD, (int)options[0].value);
    MPI_Barrier(MPI_COMM_WORLD);
    fprintf(stderr, "FAIL rank %d: alive after MPI_Abort\n", rank);
    return 3;
}
