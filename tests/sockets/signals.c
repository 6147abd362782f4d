// Signals: calls that they end, calls that go on, SIGPIPE, handlers that use connections.
#include "body.h"
#include <sys/signalfd.h>
#include <sys/time.h>

// The first signal could come before the call that it is to interrupt, on a busy machine; so there are more.
static void alarm_every(int ms) {
    struct timeval time = {ms / 1000, ms % 1000 * 1000};
    MUST(setitimer(ITIMER_REAL, &(struct itimerval){time, time}, NULL));
}

static void alarm_in(int ms) {
    struct itimerval time = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    MUST(setitimer(ITIMER_REAL, &time, NULL));
}

static void no_more_signals(void) {
    MUST(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    line("a signal came: %d", interrupts > 0);
}

// What waits, for a signal; `one` says what, `two` whether system calls go on after the handler.
static long waits(int what, int fd, int listening) {
    struct pollfd poll_one = {fd, POLLIN, 0};
    struct epoll_event event = {EPOLLIN, {0}};
    fd_set in;
    struct iovec vector = {buffer, 10};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    int set;
    switch (what) {
    case 0: return recv(fd, buffer, 10, 0);
    case 1: return read(fd, buffer, 10);
    case 2: return recvmsg(fd, &message, 0);
    case 3: return accept(listening, NULL, NULL);
    case 4: return poll(&poll_one, 1, 5000);
    case 5: FD_ZERO(&in); FD_SET(fd, &in); return select(fd + 1, &in, NULL, NULL, &(struct timeval){5, 0});
    case 6:
        set = MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        return epoll_wait(set, &event, 1, 5000);
    case 7: return readv(fd, &vector, 1);
    default: return recv(fd, buffer, 10, MSG_WAITALL);
    }
}

static const char *const waiting[] = {"recv", "read", "recvmsg", "accept", "poll", "select", "epoll", "readv",
                                      "recv-waitall"};

static void interrupted(const Case *self) {
    int fd = connected(), listening = -1;
    bool restarts = self->two;
    on_signal(SIGALRM, restarts ? SA_RESTART : 0);
    if (A) {
        if (self->one == 3) {
            listening = MUST(socket(AF_INET, SOCK_STREAM, 0));
            MUST(listen(listening, 4)); // on a port of the kernel's
        }
        alarm_every(50);
        R(waits(self->one, fd, listening));
        no_more_signals();
        meet();
        return;
    }
    if (restarts) {
        pause_ms(200);
        R(send(fd, "0123456789", 10, 0));
    }
    meet();
}

static void interrupted_send(const Case *self) {
    (void)self;
    int fd = connected();
    on_signal(SIGALRM, 0);
    if (A) {
        long total = full(fd);
        set_blocking(fd, true);
        alarm_every(60);
        R(send(fd, pattern, 500000, 0));
        no_more_signals();
        tell(total);
        meet();
        return;
    }
    long total = hear();
    char *all = malloc(total);
    line("all arrived: %d", read_all(fd, all, total) == (size_t)total);
    meet();
}

// A time limit makes even calls that would go on end.
static void interrupted_with_a_time(const Case *self) {
    (void)self;
    int fd = connected();
    struct timeval time = {5, 0};
    on_signal(SIGALRM, SA_RESTART);
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    alarm_every(50);
    R(recv(fd, buffer, 10, 0));
    no_more_signals();
    meet();
}

static void broken_pipe_ends(const Case *self) {
    int fd = connected();
    if (B) {
        meet();
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        signal(SIGPIPE, self->one ? SIG_IGN : SIG_DFL);
        shutdown(fd, SHUT_WR);
        ssize_t sent = write(fd, "x", 1);
        _exit(sent == -1 && errno == EPIPE ? 7 : 8);
    }
    await_child(child);
    meet();
}

// A signal that comes between the look and the wait is not lost.
static void mask_while_waiting(const Case *self) {
    int fd = connected();
    sigset_t alarm_only, none;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigemptyset(&none);
    on_signal(SIGALRM, 0);
    MUST(sigprocmask(SIG_BLOCK, &alarm_only, NULL));
    raise(SIGALRM); // waits, because it is blocked
    struct pollfd one = {fd, POLLIN, 0};
    struct timespec time = {5, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    struct epoll_event event = {EPOLLIN, {0}};
    int set = MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    R(poll(&one, 1, 20));
    if (self->one == 0) R(ppoll(&one, 1, &time, &none));
    if (self->one == 1) R(pselect(fd + 1, &in, NULL, NULL, &time, &none));
    if (self->one == 2) R(epoll_pwait(set, &event, 1, 5000, &none));
    line("signals: %d", interrupts);
    meet();
}

static int handler_fd;

static void answers(int number) {
    (void)number;
    int saved = errno;
    interrupts++;
    if (write(handler_fd, "h", 1) != 1) interrupts += 100;
    errno = saved;
}

// A handler that writes to the connection that its thread waits on.
static void handler_writes(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        handler_fd = fd;
        struct sigaction action = {.sa_handler = answers, .sa_flags = SA_RESTART};
        MUST(sigaction(SIGALRM, &action, NULL));
        alarm_in(50);
        R(recv(fd, buffer, 2, MSG_WAITALL));
        line("signals: %d", interrupts);
        return;
    }
    R(recv(fd, buffer, 1, 0));
    R(send(fd, "ok", 2, 0));
}

// Handlers that write while their thread writes: each byte arrives once.
static void storm(const Case *self) {
    bool handlers_write = self->one;
    int fd = connected();
    enum { BYTES = 900000 };
    if (B) {
        size_t total = 0, of_handlers = 0;
        for (ssize_t got; (got = recv(fd, buffer, 5000, 0)) > 0; total += got)
            for (ssize_t i = 0; i < got; i++) of_handlers += buffer[i] == 'h';
        line("%zu bytes of the thread", total - of_handlers);
        tell(of_handlers);
        meet();
        return;
    }
    handler_fd = fd;
    struct sigaction action = {.sa_handler = answers, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    if (!handlers_write) on_signal(SIGALRM, SA_RESTART);
    memset(buffer, '.', sizeof(buffer));
    struct itimerval time = {{0, 300}, {0, 300}};
    MUST(setitimer(ITIMER_REAL, &time, NULL));
    size_t sent = 0;
    while (sent < BYTES) {
        ssize_t now = send(fd, buffer, BYTES - sent < 3000 ? BYTES - sent : 3000, 0);
        if (now < 0) break;
        sent += now;
    }
    MUST(setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    line("sent %zu", sent);
    R(shutdown(fd, SHUT_WR));
    line("those of handlers arrived: %d", hear() == (handlers_write ? interrupts : 0));
    meet();
}

static void by_descriptor(const Case *self) {
    (void)self;
    int fd = connected();
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    MUST(sigprocmask(SIG_BLOCK, &alarm_only, NULL));
    int signals = MUST(signalfd(-1, &alarm_only, 0));
    alarm_in(50);
    struct pollfd two[2] = {{fd, POLLIN, 0}, {signals, POLLIN, 0}};
    R(poll(two, 2, 5000));
    line("%s and %s", events_name(two[0].revents), events_name(two[1].revents));
    meet();
    R(send(fd, "x", 1, 0));
    await_bytes(fd, 1);
    R(poll(two, 2, 5000));
    line("%s and %s", events_name(two[0].revents), events_name(two[1].revents));
    meet();
}

void signal_cases(void) {
    for (int restarts = 0; restarts < 2; restarts++)
        for (int i = 0; i < (int)COUNT(waiting); i++) {
            if (restarts && i == 3) continue; // nobody calls
            char name[100];
            snprintf(name, sizeof(name), "signal/%s-%s", restarts ? "goes-on" : "interrupts", waiting[i]);
            add(name, interrupted, i, restarts);
        }
    add("signal/interrupts-send", interrupted_send, 0, 0);
    add("signal/interrupts-recv-with-a-time", interrupted_with_a_time, 0, 0);
    add("signal/broken-pipe-ends", broken_pipe_ends, 0, 0);
    add("signal/broken-pipe-ignored", broken_pipe_ends, 1, 0);
    add("signal/mask-of-ppoll", mask_while_waiting, 0, 0);
    add("signal/mask-of-pselect", mask_while_waiting, 1, 0);
    add("signal/mask-of-epoll", mask_while_waiting, 2, 0);
    add("signal/handler-writes", handler_writes, 0, 0);
    add("signal/storm", storm, 0, 0);
    add("signal/storm-of-writers", storm, 1, 0);
    add("signal/by-descriptor", by_descriptor, 0, 0);
}
