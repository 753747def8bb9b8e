/* Blocking calls, each in a thread of its own, while checkpoints happen. None may say EINTR, return early, or lose what it waits for. One line
   for each. Argument: "all", or "kept" without those on sockets, message queues and other processes, which a restored process does not
   get back. Run in an empty directory; the ids of System V objects are in the file "ipc" while they exist. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What timeouts are set to, and when those that wait for something get it, in milliseconds. */
enum { TIMEOUT = 1300, EVENT = 1300 };

#define SETUP(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            printf("line %d: %s (errno %d)\n", __LINE__, #condition, errno);   \
            exit(4);                                                           \
        }                                                                      \
    } while (0)

static struct timespec from_now(clockid_t clock, long milliseconds) {
    struct timespec time;
    clock_gettime(clock, &time);
    time.tv_nsec += milliseconds % 1000 * 1000000;
    time.tv_sec += milliseconds / 1000 + time.tv_nsec / 1000000000;
    time.tv_nsec %= 1000000000;
    return time;
}

static const struct timespec relative = {TIMEOUT / 1000, TIMEOUT % 1000 * 1000000};
static struct timeval relative_timeval(void) { return (struct timeval){TIMEOUT / 1000, TIMEOUT % 1000 * 1000}; }

/* Nothing ever comes out of these. */
static int silent_pipe[2], silent_epoll, silent_listener, silent_pair[2], stuffed_pair[2], silent_semaphores, stuffed_listener;
static mqd_t silent_queue, stuffed_queue;
static sem_t silent_semaphore;
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER, mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t held_lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t silent_condition = PTHREAD_COND_INITIALIZER;
static uint32_t silent_word;

/* Calls with a timeout. All give 0 if they time out as they should. */
#define TIMES_OUT(call, error) ((call) == -1 && errno == (error) ? 0 : -1)
#define RETURNS(call, code) ((errno = (call)) == (code) ? 0 : -1)

static int t_nanosleep(void) { return nanosleep(&relative, 0); }
static int t_nanosleep_rest(void) { struct timespec rest = relative; return nanosleep(&relative, &rest); }
static int t_clock_nanosleep(void) { return RETURNS(clock_nanosleep(CLOCK_MONOTONIC, 0, &relative, 0), 0); }
static int t_clock_nanosleep_until(void) {
    struct timespec until = from_now(CLOCK_MONOTONIC, TIMEOUT);
    return RETURNS(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0), 0);
}
static int t_usleep(void) { return usleep(TIMEOUT * 1000); }
static int t_sleep(void) { return sleep(2); }
static int t_poll(void) { return poll(&(struct pollfd){silent_pipe[0], POLLIN, 0}, 1, TIMEOUT); }
static int t_poll_nothing(void) { return poll(0, 0, TIMEOUT); }
/* The masks keep out what is sent to the process for other threads. */
static int t_ppoll(void) {
    sigset_t all;
    sigfillset(&all);
    return ppoll(&(struct pollfd){silent_pipe[0], POLLIN, 0}, 1, &relative, &all);
}
static int t_select(void) {
    struct timeval time = relative_timeval();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(silent_pipe[0], &set);
    return select(silent_pipe[0] + 1, &set, 0, 0, &time);
}
static int t_pselect(void) {
    sigset_t all;
    fd_set set;
    sigfillset(&all);
    FD_ZERO(&set);
    FD_SET(silent_pipe[0], &set);
    return pselect(silent_pipe[0] + 1, &set, 0, 0, &relative, &all);
}
static int t_epoll_wait(void) { struct epoll_event event; return epoll_wait(silent_epoll, &event, 1, TIMEOUT); }
static int t_epoll_pwait(void) {
    struct epoll_event event;
    sigset_t all;
    sigfillset(&all);
    return epoll_pwait(silent_epoll, &event, 1, TIMEOUT, &all);
}
static int t_epoll_pwait2(void) { struct epoll_event event; return epoll_pwait2(silent_epoll, &event, 1, &relative, 0); }
static int t_sem_timedwait(void) {
    struct timespec until = from_now(CLOCK_REALTIME, TIMEOUT);
    return TIMES_OUT(sem_timedwait(&silent_semaphore, &until), ETIMEDOUT);
}
static int t_sem_clockwait(void) {
    struct timespec until = from_now(CLOCK_MONOTONIC, TIMEOUT);
    return TIMES_OUT(sem_clockwait(&silent_semaphore, CLOCK_MONOTONIC, &until), ETIMEDOUT);
}
static int t_cond_timedwait(void) {
    struct timespec until = from_now(CLOCK_REALTIME, TIMEOUT);
    int result = 0;
    pthread_mutex_lock(&mutex);
    while (result == 0) result = pthread_cond_timedwait(&silent_condition, &mutex, &until);
    pthread_mutex_unlock(&mutex);
    return RETURNS(result, ETIMEDOUT);
}
static int t_mutex_timedlock(void) {
    struct timespec until = from_now(CLOCK_REALTIME, TIMEOUT);
    return RETURNS(pthread_mutex_timedlock(&held, &until), ETIMEDOUT);
}
static int t_rwlock_timedrdlock(void) {
    struct timespec until = from_now(CLOCK_REALTIME, TIMEOUT);
    return RETURNS(pthread_rwlock_timedrdlock(&held_lock, &until), ETIMEDOUT);
}
static int t_sigtimedwait(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 9);
    return TIMES_OUT(sigtimedwait(&set, 0, &relative), EAGAIN);
}
static int t_semtimedop(void) { return TIMES_OUT(semtimedop(silent_semaphores, &(struct sembuf){0, -1, 0}, 1, &relative), EAGAIN); }
static int t_futex(void) { return TIMES_OUT(syscall(SYS_futex, &silent_word, FUTEX_WAIT, 0, &relative, 0, 0), ETIMEDOUT); }
static int t_futex_bitset(void) {
    struct timespec until = from_now(CLOCK_MONOTONIC, TIMEOUT);
    return TIMES_OUT(syscall(SYS_futex, &silent_word, FUTEX_WAIT_BITSET, 0, &until, 0, -1), ETIMEDOUT);
}
static int t_syscall_nanosleep(void) { return syscall(SYS_nanosleep, &relative, 0); }
static int t_syscall_poll(void) { return syscall(SYS_poll, 0, 0, TIMEOUT); }
static int t_syscall_select(void) {
    struct timeval time = relative_timeval();
    return syscall(SYS_select, 0, 0, 0, 0, &time);
}
static int t_timerfd(void) {
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    uint64_t ticks = 0;
    struct itimerspec once = {.it_value = relative};
    return timerfd_settime(timer, 0, &once, 0) == 0 && read(timer, &ticks, 8) == 8 && ticks == 1 ? 0 : -1;
}
static int t_recv(void) { char byte; return TIMES_OUT(recv(silent_pair[0], &byte, 1, 0), EAGAIN); }
static int t_recvmsg(void) {
    char byte;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    return TIMES_OUT(recvmsg(silent_pair[0], &message, 0), EAGAIN);
}
static int t_socket_read(void) { char byte; return TIMES_OUT(read(silent_pair[0], &byte, 1), EAGAIN); }
static int t_send(void) { char byte = 0; return TIMES_OUT(send(stuffed_pair[0], &byte, 1, 0), EAGAIN); }
static int t_accept(void) { return TIMES_OUT(accept(silent_listener, 0, 0), EAGAIN); }
static int t_connect(void) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    struct timeval time = relative_timeval();
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    getsockname(stuffed_listener, (struct sockaddr *)&address, &length);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    return TIMES_OUT(connect(fd, (struct sockaddr *)&address, length), EAGAIN);
}
static int t_mq_timedreceive(void) {
    char bytes[8];
    struct timespec until = from_now(CLOCK_REALTIME, TIMEOUT);
    return TIMES_OUT(mq_timedreceive(silent_queue, bytes, 8, 0, &until), ETIMEDOUT);
}
static int t_mq_timedsend(void) {
    struct timespec until = from_now(CLOCK_REALTIME, TIMEOUT);
    return TIMES_OUT(mq_timedsend(stuffed_queue, "x", 1, 0, &until), ETIMEDOUT);
}

/* Calls that wait for an event, which main lets happen. */
static int read_pipe[2], readv_pipe[2], splice_pipe[2], splice_to[2], tee_pipe[2], tee_to[2], raw_pipe[2], full_pipe[2], poll_pipe[2];
static int event, signals, recv_pair[2], recvmmsg_pair[2], full_pair[2], listener, full_listener, waiting_connection, semaphores, queue, full;
static int flock_holder, ofd_holder, child_holds[2];
static mqd_t posix_queue;
static sem_t semaphore;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_t suspended, paused;
static int turned, suspended_alarms;
static uint32_t word;
struct message { long type; char byte; };

static int e_read(void) { char byte; return read(read_pipe[0], &byte, 1) == 1 ? 0 : -1; }
static int e_readv(void) { char byte; struct iovec vector = {&byte, 1}; return readv(readv_pipe[0], &vector, 1) == 1 ? 0 : -1; }
static int e_syscall_read(void) { char byte; return syscall(SYS_read, raw_pipe[0], &byte, 1) == 1 ? 0 : -1; }
static int e_splice(void) { return splice(splice_pipe[0], 0, splice_to[1], 0, 1, 0) == 1 ? 0 : -1; }
static int e_tee(void) { return tee(tee_pipe[0], tee_to[1], 1, 0) == 1 ? 0 : -1; }
static int e_write(void) { char bytes[4096] = {0}; return write(full_pipe[1], bytes, 4096) == 4096 ? 0 : -1; }
static int e_poll(void) { return poll(&(struct pollfd){poll_pipe[0], POLLIN, 0}, 1, -1) == 1 ? 0 : -1; }
static int e_pselect(void) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(poll_pipe[0], &set);
    return pselect(poll_pipe[0] + 1, &set, 0, 0, 0, 0) == 1 ? 0 : -1;
}
static int e_eventfd(void) { eventfd_t value; return eventfd_read(event, &value) == 0 && value == 1 ? 0 : -1; }
static int e_signalfd(void) {
    struct signalfd_siginfo info;
    return read(signals, &info, sizeof info) == sizeof info && (int)info.ssi_signo == SIGRTMIN + 1 ? 0 : -1;
}
static int e_sigwaitinfo(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 2);
    return sigwaitinfo(&set, 0) == SIGRTMIN + 2 ? 0 : -1;
}
static int e_sigwait(void) {
    sigset_t set;
    int got;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 3);
    return RETURNS(sigwait(&set, &got), 0);
}
/* These two return only when a signal of the program's own has come: EINTR is right, and once. */
static int e_sigsuspend(void) {
    sigset_t set;
    sigfillset(&set), sigdelset(&set, SIGRTMIN + 4);
    return TIMES_OUT(sigsuspend(&set), EINTR) || suspended_alarms != 1;
}
static int e_pause(void) {
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 5), pthread_sigmask(SIG_UNBLOCK, &set, 0);
    return TIMES_OUT(pause(), EINTR);
}
static int e_open_fifo(void) { return open("fifo", O_RDONLY) < 0; }
static int e_sem_wait(void) { return sem_wait(&semaphore); }
static int e_cond_wait(void) {
    int result = 0;
    pthread_mutex_lock(&mutex);
    while (result == 0 && !turned) result = pthread_cond_wait(&condition, &mutex);
    pthread_mutex_unlock(&mutex);
    return RETURNS(result, 0);
}
static int e_barrier(void) { return pthread_barrier_wait(&barrier) > 0; }
static int e_futex(void) {
    /* Made again when the word has changed already, it says so and does not wait: so does the kernel's own restart. */
    return syscall(SYS_futex, &word, FUTEX_WAIT, 0, 0, 0, 0) == 0 || (errno == EAGAIN && word) ? 0 : -1;
}
static int e_semop(void) { return semop(semaphores, &(struct sembuf){0, -1, 0}, 1); }
static int e_msgrcv(void) { struct message message; return msgrcv(queue, &message, 1, 7, 0) == 1 ? 0 : -1; }
static int e_msgsnd(void) { struct message message = {1, 0}; return msgsnd(full, &message, 1, 0); }
static int e_flock(void) { return flock(open("flock", O_RDWR), LOCK_EX); }
static int e_ofd_lock(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(open("ofd", O_RDWR), F_OFD_SETLKW, &lock);
}
static int e_setlkw(void) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(open("setlkw", O_RDWR), F_SETLKW, &lock);
}
static int e_recvfrom(void) { char byte; return recvfrom(recv_pair[0], &byte, 1, 0, 0, 0) == 1 ? 0 : -1; }
static int e_recvmmsg(void) {
    char byte;
    struct iovec vector = {&byte, 1};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
    return recvmmsg(recvmmsg_pair[0], &message, 1, 0, 0) == 1 ? 0 : -1;
}
static int e_sendmsg(void) {
    char byte = 0;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    return sendmsg(full_pair[0], &message, 0) == 1 ? 0 : -1;
}
static int e_accept4(void) { return accept4(listener, 0, 0, SOCK_CLOEXEC) < 0; }
static int e_connect(void) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    getsockname(full_listener, (struct sockaddr *)&address, &length);
    return connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, length);
}
static int e_mq_receive(void) { char bytes[8]; return mq_receive(posix_queue, bytes, 8, 0) == 1 ? 0 : -1; }

/* Not blocked, but never to be interrupted either. What is written after a checkpoint is taken back by a restore. */
static int e_pread(void) {
    char bytes[65536], back[65536];
    int file = open("pread", O_CREAT | O_RDWR, 0600);
    struct timespec until = from_now(CLOCK_MONOTONIC, EVENT), now = {0};
    for (int round = 0; now.tv_sec < until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec < until.tv_nsec); round++) {
        memset(bytes, round, sizeof bytes);
        if (pwrite(file, bytes, sizeof bytes, 0) != sizeof bytes || pread(file, back, sizeof back, 0) != sizeof back) return -1;
        if (memcmp(bytes, back, sizeof bytes)) return 2;
        clock_gettime(CLOCK_MONOTONIC, &now);
    }
    return 0;
}

/* In many threads, a signal of the program's own, by a timer, ends each pause or read. Many come while all threads are stopped for a
   checkpoint: they must not be forgotten by the call that is made again. A few may be: a timer that comes before its pause has begun is
   forgotten in any program, and a checkpoint adds a microsecond to that time. */
enum { PAUSING = 40, ALARMS = 100, MAY_BE_FORGOTTEN = 5 };
static volatile int progress[PAUSING], wrong;

static void on_signal(int signal) { if (signal == SIGRTMIN + 4) suspended_alarms++; }
static int pause_or_read(long which) {
    char byte;
    return which % 2 ? read(silent_pipe[0], &byte, 1) : pause();
}
static void *pauses(void *argument) {
    long id = (long)argument;
    struct sigevent how = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 6, ._sigev_un._tid = gettid()};
    struct itimerspec soon = {.it_value = {0, 10000000}};
    timer_t timer;
    SETUP(timer_create(CLOCK_MONOTONIC, &how, &timer) == 0);
    sigset_t set;
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 6), pthread_sigmask(SIG_UNBLOCK, &set, 0);
    for (; progress[id] < ALARMS; progress[id]++)
        if (timer_settime(timer, 0, &soon, 0) || pause_or_read(id) != -1 || errno != EINTR) wrong++;
    pthread_sigmask(SIG_BLOCK, &set, 0);
    timer_delete(timer);
    return 0;
}
static int e_alarms(void) {
    pthread_t threads[PAUSING];
    int before[PAUSING] = {0}, still[PAUSING] = {0}, forgotten = 0;
    struct sigaction action = {.sa_handler = on_signal};
    SETUP(sigaction(SIGRTMIN + 6, &action, 0) == 0);
    for (long i = 0; i < PAUSING; i++) SETUP(pthread_create(&threads[i], 0, pauses, (void *)i) == 0);
    for (int ended = 0; ended < PAUSING;) {
        usleep(100000);
        ended = 0;
        for (int i = 0; i < PAUSING; i++) {
            still[i] = progress[i] == before[i] ? still[i] + 1 : 0;
            before[i] = progress[i];
            ended += progress[i] == ALARMS;
            if (progress[i] < ALARMS && still[i] > 3) forgotten++, still[i] = 0, pthread_kill(threads[i], SIGRTMIN + 6);
        }
    }
    for (int i = 0; i < PAUSING; i++) pthread_join(threads[i], 0);
    return wrong ? -1 : forgotten > MAY_BE_FORGOTTEN ? forgotten : 0;
}

enum { KEPT, LOST };
static struct call {
    const char *name;
    int (*make)(void);
    int timeout, lost;
    pthread_t thread;
    int result, error;
    long took;
} calls[] = {
    {"nanosleep", t_nanosleep, TIMEOUT, KEPT},
    {"nanosleep, asking for the rest", t_nanosleep_rest, TIMEOUT, KEPT},
    {"clock_nanosleep", t_clock_nanosleep, TIMEOUT, KEPT},
    {"clock_nanosleep until", t_clock_nanosleep_until, TIMEOUT, KEPT},
    {"usleep", t_usleep, TIMEOUT, KEPT},
    {"sleep", t_sleep, 2000, KEPT},
    {"poll", t_poll, TIMEOUT, KEPT},
    {"poll of nothing", t_poll_nothing, TIMEOUT, KEPT},
    {"ppoll", t_ppoll, TIMEOUT, KEPT},
    {"select", t_select, TIMEOUT, KEPT},
    {"pselect", t_pselect, TIMEOUT, KEPT},
    {"epoll_wait", t_epoll_wait, TIMEOUT, KEPT},
    {"epoll_pwait", t_epoll_pwait, TIMEOUT, KEPT},
    {"epoll_pwait2", t_epoll_pwait2, TIMEOUT, KEPT},
    {"sem_timedwait", t_sem_timedwait, TIMEOUT, KEPT},
    {"sem_clockwait", t_sem_clockwait, TIMEOUT, KEPT},
    {"pthread_cond_timedwait", t_cond_timedwait, TIMEOUT, KEPT},
    {"pthread_mutex_timedlock", t_mutex_timedlock, TIMEOUT, KEPT},
    {"pthread_rwlock_timedrdlock", t_rwlock_timedrdlock, TIMEOUT, KEPT},
    {"sigtimedwait", t_sigtimedwait, TIMEOUT, KEPT},
    {"semtimedop", t_semtimedop, TIMEOUT, KEPT},
    {"syscall: futex", t_futex, TIMEOUT, KEPT},
    {"syscall: futex bitset", t_futex_bitset, TIMEOUT, KEPT},
    {"syscall: nanosleep", t_syscall_nanosleep, TIMEOUT, KEPT},
    {"syscall: poll", t_syscall_poll, TIMEOUT, KEPT},
    {"syscall: select", t_syscall_select, TIMEOUT, KEPT},
    {"timerfd", t_timerfd, TIMEOUT, KEPT},
    {"recv, SO_RCVTIMEO", t_recv, TIMEOUT, LOST},
    {"recvmsg, SO_RCVTIMEO", t_recvmsg, TIMEOUT, LOST},
    {"read, SO_RCVTIMEO", t_socket_read, TIMEOUT, LOST},
    {"send, SO_SNDTIMEO", t_send, TIMEOUT, LOST},
    {"accept, SO_RCVTIMEO", t_accept, TIMEOUT, LOST},
    {"connect, SO_SNDTIMEO", t_connect, TIMEOUT, LOST},
    {"mq_timedreceive", t_mq_timedreceive, TIMEOUT, LOST},
    {"mq_timedsend", t_mq_timedsend, TIMEOUT, LOST},
    {"read", e_read, 0, KEPT},
    {"readv", e_readv, 0, KEPT},
    {"syscall: read", e_syscall_read, 0, KEPT},
    {"splice", e_splice, 0, KEPT},
    {"tee", e_tee, 0, KEPT},
    {"write", e_write, 0, KEPT},
    {"poll for ever", e_poll, 0, KEPT},
    {"pselect for ever", e_pselect, 0, KEPT},
    {"eventfd", e_eventfd, 0, KEPT},
    {"signalfd", e_signalfd, 0, KEPT},
    {"sigwaitinfo", e_sigwaitinfo, 0, KEPT},
    {"sigwait", e_sigwait, 0, KEPT},
    {"sigsuspend", e_sigsuspend, 0, KEPT},
    {"pause", e_pause, 0, KEPT},
    {"pauses and reads ended by timers", e_alarms, 0, KEPT},
    {"open of a fifo", e_open_fifo, 0, KEPT},
    {"sem_wait", e_sem_wait, 0, KEPT},
    {"pthread_cond_wait", e_cond_wait, 0, KEPT},
    {"pthread_barrier_wait", e_barrier, 0, KEPT},
    {"syscall: futex for ever", e_futex, 0, KEPT},
    {"semop", e_semop, 0, KEPT},
    {"msgrcv", e_msgrcv, 0, KEPT},
    {"msgsnd", e_msgsnd, 0, KEPT},
    {"flock", e_flock, 0, KEPT},
    {"fcntl F_OFD_SETLKW", e_ofd_lock, 0, KEPT},
    {"fcntl F_SETLKW", e_setlkw, 0, LOST},
    {"recvfrom", e_recvfrom, 0, LOST},
    {"recvmmsg", e_recvmmsg, 0, LOST},
    {"sendmsg", e_sendmsg, 0, LOST},
    {"accept4", e_accept4, 0, LOST},
    {"connect", e_connect, 0, LOST},
    {"mq_receive", e_mq_receive, 0, LOST},
    {"pread and pwrite", e_pread, 0, KEPT},
};
enum { CALLS = sizeof calls / sizeof *calls };

static void *one(void *argument) {
    struct call *call = argument;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    call->result = call->make();
    call->error = errno;
    clock_gettime(CLOCK_MONOTONIC, &end);
    call->took = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    return 0;
}

/* A pipe or socket that takes no more. */
static void stuff(int fd) {
    char bytes[4096] = {0};
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    while (write(fd, bytes, sizeof bytes) > 0) {}
    while (write(fd, bytes, 1) > 0) {}
    fcntl(fd, F_SETFL, flags);
}

static int listen_somewhere(void) {
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    SETUP(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && listen(fd, 0) == 0);
    return fd;
}

static int connect_to(int listening) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    getsockname(listening, (struct sockaddr *)&address, &length);
    SETUP(connect(fd, (struct sockaddr *)&address, length) == 0);
    return fd;
}

static mqd_t open_queue(const char *suffix) {
    char name[64];
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};
    snprintf(name, sizeof name, "/radic-calls-%d-%s", getpid(), suffix);
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attributes);
    SETUP(queue != (mqd_t)-1 && mq_unlink(name) == 0);
    return queue;
}

static void set_up_lost(void) {
    struct timeval time = relative_timeval();
    silent_listener = listen_somewhere(), stuffed_listener = listen_somewhere();
    listener = listen_somewhere(), full_listener = listen_somewhere();
    connect_to(stuffed_listener), waiting_connection = connect_to(full_listener);
    SETUP(socketpair(AF_UNIX, SOCK_STREAM, 0, silent_pair) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, stuffed_pair) == 0);
    SETUP(socketpair(AF_UNIX, SOCK_STREAM, 0, recv_pair) == 0 && socketpair(AF_UNIX, SOCK_DGRAM, 0, recvmmsg_pair) == 0);
    SETUP(socketpair(AF_UNIX, SOCK_STREAM, 0, full_pair) == 0);
    stuff(stuffed_pair[0]), stuff(full_pair[0]);
    setsockopt(silent_pair[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(stuffed_pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    setsockopt(silent_listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    silent_queue = open_queue("silent"), stuffed_queue = open_queue("stuffed"), posix_queue = open_queue("queue");
    SETUP(mq_send(stuffed_queue, "x", 1, 0) == 0);
    /* Another process has the lock until this one closes the pipe. */
    int locked[2], file = open("setlkw", O_CREAT | O_RDWR, 0600);
    char byte;
    SETUP(pipe(child_holds) == 0 && pipe(locked) == 0);
    if (fork() == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        close(child_holds[1]);
        fcntl(file, F_SETLK, &lock);
        if (write(locked[1], "x", 1) == 1 && read(child_holds[0], &byte, 1) >= 0) _exit(0);
        _exit(1);
    }
    SETUP(read(locked[0], &byte, 1) == 1);
    close(file), close(locked[0]), close(locked[1]), close(child_holds[0]);
}

static void set_up(void) {
    int *pipes[] = {silent_pipe, read_pipe, readv_pipe, splice_pipe, splice_to, tee_pipe, tee_to, raw_pipe, full_pipe, poll_pipe};
    for (size_t i = 0; i < sizeof pipes / sizeof *pipes; i++) SETUP(pipe(pipes[i]) == 0);
    stuff(full_pipe[1]);
    struct epoll_event nothing = {.events = EPOLLIN};
    SETUP((silent_epoll = epoll_create1(0)) >= 0 && epoll_ctl(silent_epoll, EPOLL_CTL_ADD, silent_pipe[0], &nothing) == 0);
    SETUP((event = eventfd(0, 0)) >= 0 && mkfifo("fifo", 0600) == 0);
    sem_init(&silent_semaphore, 0, 0), sem_init(&semaphore, 0, 0);
    pthread_barrier_init(&barrier, 0, 2);
    pthread_mutex_lock(&held), pthread_rwlock_wrlock(&held_lock);
    sigset_t set;
    sigemptyset(&set);
    for (int i = 1; i < 10; i++) sigaddset(&set, SIGRTMIN + i);
    sigprocmask(SIG_BLOCK, &set, 0);
    sigemptyset(&set), sigaddset(&set, SIGRTMIN + 1);
    SETUP((signals = signalfd(-1, &set, 0)) >= 0);
    for (int i = 4; i < 6; i++) signal(SIGRTMIN + i, on_signal);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    SETUP((flock_holder = open("flock", O_CREAT | O_RDWR, 0600)) >= 0 && flock(flock_holder, LOCK_EX) == 0);
    SETUP((ofd_holder = open("ofd", O_CREAT | O_RDWR, 0600)) >= 0 && fcntl(ofd_holder, F_OFD_SETLK, &lock) == 0);
    FILE *ids = fopen("ipc", "w");
    SETUP(ids);
    SETUP((silent_semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0 && (semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    SETUP((queue = msgget(IPC_PRIVATE, 0600)) >= 0 && (full = msgget(IPC_PRIVATE, 0600)) >= 0);
    fprintf(ids, "%d %d %d %d\n", silent_semaphores, semaphores, queue, full), fclose(ids);
    struct message message = {1, 0};
    while (msgsnd(full, &message, 1, IPC_NOWAIT) == 0) {}
}

/* What the calls without a timeout wait for. */
static void let_it_happen(int all) {
    char bytes[4096];
    struct message message = {7, 0}, first;
    SETUP(write(read_pipe[1], "x", 1) == 1 && write(readv_pipe[1], "x", 1) == 1 && write(raw_pipe[1], "x", 1) == 1);
    SETUP(write(splice_pipe[1], "x", 1) == 1 && write(tee_pipe[1], "x", 1) == 1 && write(poll_pipe[1], "x", 1) == 1);
    for (int i = 0; i < 4; i++) SETUP(read(full_pipe[0], bytes, sizeof bytes) > 0);
    SETUP(eventfd_write(event, 1) == 0 && open("fifo", O_WRONLY) >= 0);
    for (int i = 1; i < 4; i++) SETUP(kill(getpid(), SIGRTMIN + i) == 0);
    SETUP(pthread_kill(suspended, SIGRTMIN + 4) == 0 && pthread_kill(paused, SIGRTMIN + 5) == 0);
    sem_post(&semaphore), pthread_barrier_wait(&barrier);
    pthread_mutex_lock(&mutex), turned = 1, pthread_cond_broadcast(&condition), pthread_mutex_unlock(&mutex);
    word = 1, syscall(SYS_futex, &word, FUTEX_WAKE, 1, 0, 0, 0);
    SETUP(semop(semaphores, &(struct sembuf){0, 1, 0}, 1) == 0 && msgsnd(queue, &message, 1, 0) == 0);
    SETUP(msgrcv(full, &first, 1, 0, 0) == 1 && flock(flock_holder, LOCK_UN) == 0 && close(ofd_holder) == 0);
    if (!all) return;
    close(child_holds[1]);
    SETUP(write(recv_pair[1], "x", 1) == 1 && write(recvmmsg_pair[1], "x", 1) == 1);
    while (recv(full_pair[1], bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
    connect_to(listener);
    SETUP(accept(full_listener, 0, 0) >= 0 && mq_send(posix_queue, "x", 1, 0) == 0);
}

static int report(struct call *call) {
    struct timespec patience = from_now(CLOCK_REALTIME, 15000);
    if (pthread_timedjoin_np(call->thread, 0, &patience)) return printf("%s: hangs\n", call->name);
    if (call->result != 0) return printf("%s: %d, error %d (%s)\n", call->name, call->result, call->error, strerror(call->error));
    if (call->timeout && call->took < call->timeout) return printf("%s: too early\n", call->name);
    printf("%s: ok\n", call->name);
    return 0;
}

int main(int count, char **arguments) {
    int all = count == 2 && strcmp(arguments[1], "all") == 0, bad = 0;
    if (!all && (count != 2 || strcmp(arguments[1], "kept"))) return 2;
    set_up();
    if (all) set_up_lost();
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].lost && !all) continue;
        SETUP(pthread_create(&calls[i].thread, 0, one, &calls[i]) == 0);
        if (calls[i].make == e_sigsuspend) suspended = calls[i].thread;
        if (calls[i].make == e_pause) paused = calls[i].thread;
    }
    printf("ready\n");
    fflush(stdout);
    struct timespec until = from_now(CLOCK_MONOTONIC, EVENT);
    SETUP(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0) == 0);
    let_it_happen(all);
    for (int i = 0; i < CALLS; i++)
        if (!calls[i].lost || all) bad += report(&calls[i]) != 0;
    semctl(silent_semaphores, 0, IPC_RMID), semctl(semaphores, 0, IPC_RMID), msgctl(queue, IPC_RMID, 0), msgctl(full, IPC_RMID, 0);
    if (all) wait(0);
    return bad ? 3 : 0;
}
