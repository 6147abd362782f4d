// Every way to wait in every situation.
#include "body.h"

#define QUIET_MS 60
#define LONG_MS 5000
#define ALL (POLLIN | POLLOUT | POLLRDHUP | POLLPRI)

typedef struct {
    const char *name;
    // What is ready of `interest`, 0 after the time, -1 and errno.
    int (*wait)(int fd, int interest, int ms);
} Waiter;

static int by_poll(int fd, int interest, int ms) {
    struct pollfd one = {fd, (short)interest, 0};
    int ready = poll(&one, 1, ms);
    return ready > 0 ? one.revents : ready;
}

static int by_ppoll(int fd, int interest, int ms) {
    struct pollfd one = {fd, (short)interest, 0};
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    sigset_t none;
    sigemptyset(&none);
    int ready = ppoll(&one, 1, &time, &none);
    return ready > 0 ? one.revents : ready;
}

static int of_sets(int ready, int fd, fd_set *in, fd_set *out, fd_set *except) {
    if (ready <= 0) return ready;
    int events = 0;
    if (FD_ISSET(fd, in)) events |= POLLIN;
    if (FD_ISSET(fd, out)) events |= POLLOUT;
    if (FD_ISSET(fd, except)) events |= POLLPRI;
    return events;
}

#define SETS                                                                                                           \
    fd_set in, out, except;                                                                                            \
    FD_ZERO(&in);                                                                                                      \
    FD_ZERO(&out);                                                                                                     \
    FD_ZERO(&except);                                                                                                  \
    if (interest & POLLIN) FD_SET(fd, &in);                                                                            \
    if (interest & POLLOUT) FD_SET(fd, &out);                                                                          \
    if (interest & POLLPRI) FD_SET(fd, &except)

static int by_select(int fd, int interest, int ms) {
    SETS;
    struct timeval time = {ms / 1000, ms % 1000 * 1000L};
    return of_sets(select(fd + 1, &in, &out, &except, &time), fd, &in, &out, &except);
}

static int by_pselect(int fd, int interest, int ms) {
    SETS;
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    return of_sets(pselect(fd + 1, &in, &out, &except, &time, NULL), fd, &in, &out, &except);
}

// The number of the call: epoll_wait, epoll_pwait, epoll_pwait2.
static int epolled(int fd, int interest, int ms, int call) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event one = {(uint32_t)interest, {.u64 = 0x1234567890abcdef}}, got[4];
    if (set == -1 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &one) == -1) return -1;
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    int ready = call == 0   ? epoll_wait(set, got, 4, ms)
                : call == 1 ? epoll_pwait(set, got, 4, ms, NULL)
                            : epoll_pwait2(set, got, 4, &time, NULL);
    int saved = errno;
    if (ready > 0 && got[0].data.u64 != one.data.u64) line("the data is another one");
    close(set);
    errno = saved;
    return ready > 0 ? (int)got[0].events : ready;
}

static int by_epoll(int fd, int interest, int ms) { return epolled(fd, interest, ms, 0); }
static int by_epoll_edge(int fd, int interest, int ms) { return epolled(fd, interest | EPOLLET, ms, 0); }
static int by_epoll_once(int fd, int interest, int ms) { return epolled(fd, interest | EPOLLONESHOT, ms, 0); }
static int by_epoll_pwait(int fd, int interest, int ms) { return epolled(fd, interest, ms, 1); }
static int by_epoll_pwait2(int fd, int interest, int ms) { return epolled(fd, interest, ms, 2); }

static const Waiter waiters[] = {{"poll", by_poll},
                                 {"ppoll", by_ppoll},
                                 {"select", by_select},
                                 {"pselect", by_pselect},
                                 {"epoll", by_epoll},
                                 {"epoll-edge", by_epoll_edge},
                                 {"epoll-oneshot", by_epoll_once},
                                 {"epoll-pwait", by_epoll_pwait},
                                 {"epoll-pwait2", by_epoll_pwait2}};

static void look(const Case *self, int fd, int interest, int ms) {
    errno = 0;
    int ready = waiters[self->one].wait(fd, interest, ms);
    if (ready < 0) line("waiting for %s: %s", events_name(interest), errno_name(errno));
    else line("ready: %s", events_name(ready));
}

static void idle(const Case *self) {
    int fd = connected();
    look(self, fd, POLLIN, QUIET_MS);
    look(self, fd, POLLIN, 0);
    look(self, fd, POLLOUT, LONG_MS);
    look(self, fd, ALL, LONG_MS);
    look(self, fd, POLLPRI, 0);
    meet();
}

static void bytes_are_there(const Case *self) {
    int fd = connected();
    R(send(fd, "abcdef", 6, 0));
    await_bytes(fd, 6);
    look(self, fd, POLLIN, LONG_MS);
    look(self, fd, ALL, LONG_MS);
    R(recv(fd, buffer, 3, 0));
    look(self, fd, POLLIN, LONG_MS);
    R(recv(fd, buffer, 3, 0));
    look(self, fd, POLLIN, QUIET_MS);
    meet();
}

static void bytes_come(const Case *self) {
    int fd = connected();
    for (int turn = 0; turn < 2; turn++) {
        meet();
        if ((side == 'A') == (turn == 0)) {
            pause_ms(40);
            R(send(fd, "x", 1, 0));
        } else {
            look(self, fd, POLLIN, LONG_MS);
            R(recv(fd, buffer, 1, MSG_DONTWAIT));
        }
    }
}

static void peer_has_shut(const Case *self) {
    int fd = connected();
    if (A) R(shutdown(fd, SHUT_WR));
    if (B) {
        await_event(fd, POLLRDHUP);
        look(self, fd, POLLIN, LONG_MS);
        look(self, fd, ALL, LONG_MS);
        look(self, fd, POLLRDHUP, LONG_MS);
    }
    meet();
}

static void end_comes(const Case *self) {
    int fd = connected();
    meet();
    if (A) {
        pause_ms(40);
        R(close(fd));
    } else {
        look(self, fd, POLLIN, LONG_MS);
        R(recv(fd, buffer, 1, MSG_DONTWAIT));
    }
}

static void both_have_shut(const Case *self) {
    int fd = connected();
    R(shutdown(fd, SHUT_WR));
    await_event(fd, POLLHUP);
    look(self, fd, POLLIN, LONG_MS);
    look(self, fd, ALL, LONG_MS);
    look(self, fd, 0, LONG_MS);
    meet();
}

static void was_reset(const Case *self) {
    int fd = connected();
    if (A) {
        struct linger now = {1, 0};
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
        R(close(fd));
        return;
    }
    await_event(fd, POLLERR);
    look(self, fd, POLLIN, LONG_MS);
    look(self, fd, ALL, LONG_MS);
    look(self, fd, 0, LONG_MS);
    R(recv(fd, buffer, 1, 0));
    look(self, fd, ALL, LONG_MS);
}

static void nothing_fits(const Case *self) {
    int fd = connected();
    if (A) {
        int total = full(fd);
        look(self, fd, POLLOUT, QUIET_MS);
        look(self, fd, ALL, QUIET_MS);
        tell(total);
        look(self, fd, POLLOUT, LONG_MS);
        R(send(fd, "x", 1, 0));
        meet();
        return;
    }
    size_t total = hear();
    char *all = malloc(total);
    line("all arrived: %d", read_all(fd, all, total) == total);
    await_bytes(fd, 1);
    meet();
}

static void a_caller_waits(const Case *self) {
    if (A) {
        int fd = dialed(hear());
        tell(0);
        hear();
        R(close(fd));
        return;
    }
    int listening = listener_with(SOCK_NONBLOCK, 8);
    look(self, listening, POLLIN, QUIET_MS);
    tell(port_of(listening));
    hear();
    look(self, listening, POLLIN, LONG_MS);
    look(self, listening, ALL, LONG_MS);
    F(accept(listening, NULL, NULL));
    look(self, listening, POLLIN, QUIET_MS);
    tell(0);
}

static void a_caller_comes(const Case *self) {
    if (A) {
        int port = hear();
        pause_ms(40);
        dialed(port);
        meet();
        return;
    }
    int listening = listener();
    look(self, listening, POLLIN, LONG_MS);
    F(accept(listening, NULL, NULL));
    meet();
}

static void unconnected(const Case *self) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    look(self, fd, ALL, LONG_MS);
    look(self, fd, POLLIN, LONG_MS);
}

static void connect_is_done(const Case *self) {
    if (B) {
        int listening = listener();
        F(accept(listening, NULL, NULL));
        meet();
        return;
    }
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), error = -1;
    struct sockaddr_in address = server_address(hear());
    R(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    look(self, fd, POLLOUT, LONG_MS);
    socklen_t length = sizeof(error);
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    line("SO_ERROR is %d", error);
    look(self, fd, ALL, LONG_MS);
    meet();
}

static void connect_is_refused(const Case *self) {
    if (B) {
        int listening = listener();
        MUST(close(listening));
        meet();
        meet();
        return;
    }
    int port = hear();
    meet();
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), error = -1;
    struct sockaddr_in address = server_address(port);
    R(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    look(self, fd, POLLOUT, LONG_MS);
    look(self, fd, ALL, LONG_MS);
    socklen_t length = sizeof(error);
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    line("SO_ERROR is %s", errno_name(error));
    meet();
}

static void closed(const Case *self) {
    int fd = connected();
    R(close(fd));
    look(self, fd, POLLIN, LONG_MS);
}

void readiness_cases(void) {
    static const struct {
        const char *name;
        void (*run)(const Case *);
    } situations[] = {{"idle", idle},
                      {"bytes-are-there", bytes_are_there},
                      {"bytes-come", bytes_come},
                      {"peer-has-shut", peer_has_shut},
                      {"end-comes", end_comes},
                      {"both-have-shut", both_have_shut},
                      {"was-reset", was_reset},
                      {"nothing-fits", nothing_fits},
                      {"a-caller-waits", a_caller_waits},
                      {"a-caller-comes", a_caller_comes},
                      {"unconnected", unconnected},
                      {"connect-is-done", connect_is_done},
                      {"connect-is-refused", connect_is_refused},
                      {"closed", closed}};
    for (size_t i = 0; i < COUNT(situations); i++)
        for (size_t j = 0; j < COUNT(waiters); j++) {
            char name[100];
            snprintf(name, sizeof(name), "ready/%s-%s", situations[i].name, waiters[j].name);
            add(name, situations[i].run, (int)j, 0);
        }
}
