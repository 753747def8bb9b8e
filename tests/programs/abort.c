/* One rank calls MPI_Abort while the others wait: the job must end with its code, and nobody may be left. */
#include "check.h"
#include <unistd.h>

int main(int argc, char **argv)
{
    struct option options[] = {{"code", 7, 1}};
    start(argc, argv, options, 1, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == size - 1)
        MPI_Abort(MPI_COMM_WORLD, (int)options[0].value);
    MPI_Barrier(MPI_COMM_WORLD);
    /* MPICH lets this barrier end when the aborting rank's connection does (seen under its own mpiexec too: 7 runs of 30), so being
     * here is no mistake. Leaving would be one: the launcher has to end everybody. */
    for (;;)
        pause();
}
