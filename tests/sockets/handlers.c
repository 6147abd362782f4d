// Signal handlers: which of them ran, what they interrupt, how they are left, and what they do meanwhile.
#include "body.h"
#include <setjmp.h>
#include <sys/time.h>

enum { WAYS = 8 };
static const char *const ways[WAYS] = {"recv", "read", "recvmsg", "readv", "recv-waitall", "poll", "select", "epoll"};

static long waits(int way, int fd) {
    struct pollfd poll_one = {fd, POLLIN, 0};
    struct epoll_event event = {EPOLLIN, {0}};
    fd_set in;
    struct iovec vector = {buffer, 4};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    int set;
    switch (way) {
    case 0: return recv(fd, buffer, 4, 0);
    case 1: return read(fd, buffer, 4);
    case 2: return recvmsg(fd, &message, 0);
    case 3: return readv(fd, &vector, 1);
    case 4: return recv(fd, buffer, 4, MSG_WAITALL);
    case 5: return poll(&poll_one, 1, 8000);
    case 6: FD_ZERO(&in); FD_SET(fd, &in); return select(fd + 1, &in, NULL, NULL, &(struct timeval){8, 0});
    default:
        set = MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        return epoll_wait(set, &event, 1, 8000);
    }
}

static void nothing(int number) { (void)number; }

static void count(int number) {
    (void)number;
    interrupts++;
}

// One signal of a kind to the thread that calls, again and again until it is told to stop: the first could come before
// the call that it is to interrupt.
static volatile bool stops;
// The other side is told when handlers ran: it sends only then.
static volatile bool tells;
static pthread_t target;

static void *kicks(void *number) {
    while (!stops) {
        pause_ms(40);
        if (!stops) pthread_kill(target, (int)(intptr_t)number);
        if (tells && interrupts > 2) {
            tells = false;
            tell(0);
        }
    }
    return NULL;
}

static pthread_t kick_with(int number) {
    pthread_t thread;
    sigset_t all, before;
    stops = false;
    target = pthread_self();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, kicks, (void *)(intptr_t)number)) broken("pthread_create", __FILE__, __LINE__);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread;
}

static void no_more_kicks(pthread_t thread) {
    stops = true;
    pthread_join(thread, NULL);
    line("handlers ran: %d", interrupts > 0);
}

// The handler that runs restarts calls; another one would not, and never runs.
static void beside_another(const Case *self) {
    int fd = connected();
    if (B) {
        hear();
        R(send(fd, "0123", 4, 0));
        meet();
        return;
    }
    tells = true;
    struct sigaction restarts = {.sa_handler = count, .sa_flags = SA_RESTART}, ends = {.sa_handler = nothing};
    MUST(sigaction(SIGUSR1, &restarts, NULL));
    MUST(sigaction(SIGTERM, &ends, NULL));
    pthread_t thread = kick_with(SIGUSR1);
    R(waits(self->one, fd));
    no_more_kicks(thread);
    meet();
}

// The other way round.
static void ends_beside_another(const Case *self) {
    int fd = connected();
    if (B) {
        meet();
        return;
    }
    struct sigaction restarts = {.sa_handler = nothing, .sa_flags = SA_RESTART}, ends = {.sa_handler = count};
    MUST(sigaction(SIGUSR1, &restarts, NULL));
    MUST(sigaction(SIGRTMAX - 2, &ends, NULL));
    pthread_t thread = kick_with(SIGRTMAX - 2);
    R(waits(self->one, fd));
    no_more_kicks(thread);
    meet();
}

// A handler that is called once. What comes afterwards would end the process, so the handler sees to it that nothing does.
static void once(int number) {
    (void)number;
    stops = true;
    interrupts++;
}

static void installs_once(int how) {
    struct sigaction action = {.sa_handler = once, .sa_flags = SA_RESETHAND};
    if (how == 0) MUST(sigaction(SIGUSR2, &action, NULL));
    if (how == 1) MUST(sysv_signal(SIGUSR2, once) == SIG_ERR ? -1 : 0);
}

static void *kicks_once(void *unused) {
    (void)unused;
    pause_ms(400);
    pthread_kill(target, SIGUSR2);
    return NULL;
}

static void called_once(const Case *self) {
    int fd = connected();
    if (B) {
        pause_ms(3000);
        R(send(fd, "0123", 4, 0));
        meet();
        return;
    }
    installs_once(self->one);
    pthread_t thread;
    target = pthread_self();
    MUST(pthread_create(&thread, NULL, kicks_once, NULL));
    R(recv(fd, buffer, 4, 0));
    pthread_join(thread, NULL);
    struct sigaction now;
    R(sigaction(SIGUSR2, NULL, &now));
    line("handlers ran: %d; the default now: %d", interrupts, now.sa_handler == SIG_DFL);
    meet();
}

// By the calls that install handlers in other ways.
static void installed_by(const Case *self) {
    int fd = connected();
    if (B) {
        hear();
        R(send(fd, "0123", 4, 0));
        meet();
        return;
    }
    tells = self->two;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    if (self->one == 0) line("before: %d", signal(SIGUSR1, count) == SIG_DFL);
    if (self->one == 1) {
        R(siginterrupt(SIGUSR1, 1));
        line("before: %d", signal(SIGUSR1, count) == SIG_DFL);
    }
    if (self->one == 2) {
        line("before: %d", signal(SIGUSR1, count) == SIG_DFL);
        R(siginterrupt(SIGUSR1, 1));
    }
    if (self->one == 3) line("before: %d", sigset(SIGUSR1, count) == SIG_DFL);
#pragma GCC diagnostic pop
    pthread_t thread = kick_with(SIGUSR1);
    R(recv(fd, buffer, 4, 0));
    no_more_kicks(thread);
    if (!self->two) tell(0);
    meet();
}

static void with_info(int number, siginfo_t *info, void *context) {
    (void)number;
    interrupts += info->si_code == SI_QUEUE && info->si_value.sival_int == 77 && context != NULL;
}

// The program is told what it asked for, and its handler what the sender said.
static void asked_for(const Case *self) {
    (void)self;
    int fd = connected();
    struct sigaction now, first = {.sa_handler = count, .sa_flags = SA_RESTART | SA_NODEFER | SA_RESETHAND};
    sigaddset(&first.sa_mask, SIGTERM);
    R(sigaction(SIGUSR1, &first, &now));
    line("the default: %d", now.sa_handler == SIG_DFL);
    struct sigaction second = {.sa_sigaction = with_info, .sa_flags = SA_SIGINFO};
    R(sigaction(SIGUSR1, &second, &now));
    line("as it was: %d, flags %x, masks %d", now.sa_handler == count, now.sa_flags & ~0x4000000,
         sigismember(&now.sa_mask, SIGTERM));
    line("signal tells: %d", (void *)signal(SIGUSR1, count) == (void *)with_info);
    R(sigaction(SIGUSR1, &second, NULL));
    R(sigqueue(getpid(), SIGUSR1, (union sigval){.sival_int = 77}));
    line("told: %d", interrupts);
    R(sigaction(SIGKILL, &second, NULL));
    R(sigaction(999, &second, NULL));
    R(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = SIG_IGN}, &now));
    line("as it was: %d", now.sa_sigaction == with_info);
    R(raise(SIGUSR1));
    R(send(fd, "x", 1, 0));
    R(recv(fd, buffer, 1, 0));
    meet();
}

static sigjmp_buf out;

static void leaves(int number) {
    (void)number;
    interrupts++;
    siglongjmp(out, 1);
}

static int second_fd;

static void *asks(void *unused) {
    (void)unused;
    R(send(second_fd, "ask", 3, 0));
    R(recv(second_fd, buffer + 100, 3, MSG_WAITALL));
    return NULL;
}

// A handler leaves a call that waits. Other threads go on, and so do later calls, and the end is told to the other side.
static void left_by_longjmp(const Case *self) {
    int fd;
    connected_two(&fd, &second_fd);
    if (B) {
        R(recv(second_fd, buffer, 3, MSG_WAITALL));
        R(send(second_fd, "yes", 3, 0));
        meet();
        R(send(fd, "0123", 4, 0));
        R(recv(fd, buffer, 4, MSG_WAITALL));
        R(recv(fd, buffer, 4, 0));
        return;
    }
    struct sigaction action = {.sa_handler = leaves, .sa_flags = self->two ? SA_RESTART : 0};
    MUST(sigaction(SIGALRM, &action, NULL));
    for (volatile int i = 0; i < 3; i++) {
        if (sigsetjmp(out, 1) == 0) {
            MUST(setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 150000}}, NULL));
            long got = waits(self->one, fd);
            line("came back: %ld %s", got, errno_name(errno));
        }
        line("left: %d", interrupts);
    }
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, asks, NULL));
    pthread_join(thread, NULL);
    meet();
    R(waits(4, fd));
    R(send(fd, "0123", 4, 0));
    R(close(fd));
}

static int handler_fd;
static volatile long handler_bytes;

static void sends(int number) {
    (void)number;
    int saved = errno;
    long sent = send(handler_fd, "t", 1, MSG_DONTWAIT);
    if (sent > 0) handler_bytes += sent;
    errno = saved;
}

// Handlers that send while the thread is in the C library's memory, or reads and writes the same connection.
static void in_the_middle(const Case *self) {
    int fd = connected();
    if (B) {
        long total = 0;
        for (ssize_t got; (got = recv(fd, buffer, 5000, 0)) > 0; total += got) {}
        line("all arrived: %d", total == hear());
        return;
    }
    handler_fd = fd;
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = sends, .sa_flags = SA_RESTART}, NULL));
    MUST(setitimer(ITIMER_REAL, &(struct itimerval){{0, 300}, {0, 300}}, NULL));
    long own = 0;
    for (long n = 0; n < 1500; n++) {
        void *blocks[64];
        for (int i = 0; i < 64; i++) blocks[i] = malloc(1500 + (n * 131 + i * 977) % 200000);
        for (int i = 63; i >= 0; i--) free(blocks[i]);
        if (!self->one) continue;
        struct pollfd one = {fd, POLLIN, 0};
        poll(&one, 1, 0);
        if (send(fd, "o", 1, 0) == 1) own++;
    }
    MUST(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    line("handlers sent: %d", handler_bytes > 0);
    tell(handler_bytes + own);
    R(shutdown(fd, SHUT_WR));
}

// Handlers send until the process is gone. What the kernel took arrives, and the end is one in order.
static void until_the_end(const Case *self) {
    for (int i = 0; i < 8; i++) {
        if (B) {
            int fd = connected();
            while (read(fd, buffer, 1000) > 0) {}
            R(recv(fd, buffer, 1, 0));
            R(close(fd));
            continue;
        }
        pid_t child = MUST(fork());
        if (child == 0) {
            handler_fd = connected();
            MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = sends, .sa_flags = SA_RESTART}, NULL));
            MUST(setitimer(ITIMER_REAL, &(struct itimerval){{0, 100}, {0, 100}}, NULL));
            pause_ms(30);
            if (self->one) _exit(0);
            exit(0);
        }
        await_child(child);
    }
}

// On a stack that has little room.
static void *in_little_room(void *place) {
    int fd = *(int *)place;
    char byte = 0;
    for (int n = 0; n < 50; n++) {
        struct pollfd one = {fd, POLLIN, 0};
        if (A && write(fd, &byte, 1) != 1) return "write";
        if (poll(&one, 1, 9000) != 1 || read(fd, &byte, 1) != 1) return "read";
        if (B && write(fd, &byte, 1) != 1) return "write";
    }
    return "all";
}

static void small_stack(const Case *self) {
    int fd = self->one ? connected() : A ? dialed(hear()) : MUST(accept(listener(), NULL, NULL));
    pthread_attr_t small;
    pthread_t thread;
    void *said = NULL;
    size_t size;
    pthread_attr_init(&small);
    R(pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN));
    R(pthread_create(&thread, &small, in_little_room, &fd));
    pthread_join(thread, &said);
    line("%s", (char *)said);
    pthread_attr_getstacksize(&small, &size);
    line("as the program set it: %d", size == (size_t)PTHREAD_STACK_MIN);
    meet();
}

static void add_each(const char *what, void (*run)(const Case *), int from, int to, int two) {
    for (int i = from; i < to; i++) {
        char name[100];
        snprintf(name, sizeof(name), "handler/%s-%s", what, ways[i]);
        add(name, run, i, two);
    }
}

void handler_cases(void) {
    add_each("goes-on-beside-another", beside_another, 0, 5, 0);
    add_each("ends-beside-another", ends_beside_another, 0, WAYS, 0);
    add_each("left-by-longjmp", left_by_longjmp, 0, WAYS, 0);
    add_each("left-by-longjmp-and-restarts", left_by_longjmp, 0, WAYS, 1);
    add("handler/called-once", called_once, 0, 0);
    add("handler/called-once-by-sysv", called_once, 1, 0);
    add("handler/by-signal", installed_by, 0, 1);
    add("handler/by-signal-after-siginterrupt", installed_by, 1, 0);
    add("handler/by-signal-before-siginterrupt", installed_by, 2, 0);
    add("handler/by-sigset", installed_by, 3, 0);
    add("handler/asked-for", asked_for, 0, 0);
    add("handler/sends-within-malloc", in_the_middle, 0, 0);
    add("handler/sends-within-calls", in_the_middle, 1, 0);
    add("handler/sends-until-the-end", until_the_end, 0, 0);
    add("handler/sends-until-_exit", until_the_end, 1, 0);
    add("handler/small-stack-cold", small_stack, 0, 0);
    add("handler/small-stack", small_stack, 1, 0);
}
