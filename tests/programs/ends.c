/* Ends, and does something more when all destructors have run, that of the library among them: ends FOLDER RANK CODE wait|fault|exit.
 * Only this rank does; it waits to be killed, makes an error, or exits with 5. It writes its number into FOLDER/late before. Its
 * program ends with CODE, that of the others with 0. What all have received before stays with its senders, so each is needed until all
 * have come to their ends. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char said[4096], late[4096];
static const char *what = "";

static void tell(void)
{
    char text[32];
    const int length = snprintf(text, sizeof text, "%d\n", getpid());
    const int file = open(said, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (file < 0 || write(file, text, (size_t)length) != length || close(file) || rename(said, late))
        syscall(SYS_exit_group, 9);
}

static void end(int code, void *unused)
{
    (void)code, (void)unused;
    if (!*what)
        return;
    tell();
    if (!strcmp(what, "fault"))
        raise(SIGSEGV);
    if (!strcmp(what, "exit"))
        syscall(SYS_exit_group, 5);
    for (;;)
        pause();
}

/* What is registered first runs last: the dynamic linker calls this before it has any destructor registered. */
static void begin(void)
{
    on_exit(end, NULL);
}

__attribute__((section(".preinit_array"), used)) static void (*const early)(void) = begin;

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int rank, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    if (rank != atoi(argv[2]))
        return 0;
    snprintf(said, sizeof said, "%s/said", argv[1]);
    snprintf(late, sizeof late, "%s/late", argv[1]);
    what = argv[4];
    return atoi(argv[3]);
}
