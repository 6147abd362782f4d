// epoll in detail, and sets of several descriptors in poll and select.
#include "body.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>

static int set_of(int fd, unsigned events) {
    int set = MUST(epoll_create1(0));
    struct epoll_event one = {events, {.fd = fd}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &one));
    return set;
}

// What a set says; the order of descriptors is not logged.
static void look(const char *what, int set, int ms) {
    struct epoll_event got[8];
    errno = 0;
    int count = epoll_wait(set, got, 8, ms);
    if (count < 0) line("%s: %s", what, errno_name(errno));
    else if (count == 0) line("%s: nothing", what);
    else if (count == 1) line("%s: %s", what, events_name(got[0].events));
    else line("%s: %d", what, count);
}

static int changed(int set, int fd, unsigned events) {
    struct epoll_event one = {events, {.fd = fd}};
    return epoll_ctl(set, EPOLL_CTL_MOD, fd, &one);
}

// A sends three times, when B asks for it.
static void feed(int fd, int times) {
    for (int i = 0; i < times; i++) {
        hear();
        R(send(fd, "abcd", 4, 0));
        tell(0);
    }
    meet();
}

static void fed(int fd, size_t unread) {
    tell(0);
    hear();
    await_bytes(fd, unread);
}

static void level(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    int set = set_of(fd, EPOLLIN);
    look("before", set, 30);
    fed(fd, 4);
    look("first", set, 5000);
    look("again", set, 5000);
    R(recv(fd, buffer, 2, 0));
    look("half", set, 5000);
    R(recv(fd, buffer, 2, 0));
    look("empty", set, 30);
    meet();
}

static void edge(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 3);
    int set = set_of(fd, EPOLLIN | EPOLLET);
    look("before", set, 30);
    fed(fd, 4);
    look("first", set, 5000);
    look("again", set, 30);
    R(recv(fd, buffer, 2, 0));
    look("half", set, 30);
    fed(fd, 6);
    look("more came", set, 5000);
    look("again", set, 30);
    R(recv(fd, buffer, 100, 0));
    R(recv(fd, buffer, 100, MSG_DONTWAIT));
    look("empty", set, 30);
    fed(fd, 4);
    look("after empty", set, 5000);
    R(changed(set, fd, EPOLLIN | EPOLLET));
    look("after a change", set, 5000);
    look("again", set, 30);
    meet();
}

static void edge_both(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    int set = set_of(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
    look("first", set, 5000);
    look("again", set, 30);
    fed(fd, 4);
    look("bytes", set, 5000);
    look("again", set, 30);
    meet();
}

static void edge_of_the_end(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        meet();
        R(shutdown(fd, SHUT_WR));
        meet();
        meet();
        return;
    }
    int set = set_of(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    meet();
    meet();
    await_event(fd, POLLRDHUP);
    look("end", set, 5000);
    look("again", set, 30);
    R(recv(fd, buffer, 1, 0));
    look("after it was read", set, 30);
    R(shutdown(fd, SHUT_WR));
    look("own end", set, 5000);
    meet();
}

static void one_shot(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 2);
    int set = set_of(fd, EPOLLIN | EPOLLONESHOT);
    fed(fd, 4);
    look("first", set, 5000);
    look("again", set, 30);
    fed(fd, 8);
    look("more came", set, 30);
    R(changed(set, fd, EPOLLIN | EPOLLONESHOT));
    look("armed", set, 5000);
    look("again", set, 30);
    R(changed(set, fd, EPOLLOUT));
    look("for writing", set, 5000);
    look("for writing again", set, 5000);
    meet();
}

static void change(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    int set = set_of(fd, EPOLLIN);
    R(changed(set, fd, EPOLLOUT));
    look("for writing", set, 5000);
    R(changed(set, fd, 0));
    look("for nothing", set, 30);
    fed(fd, 4);
    look("for nothing, with bytes", set, 30);
    R(changed(set, fd, EPOLLIN | EPOLLOUT));
    look("for both", set, 5000);
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    look("removed", set, 30);
    R(changed(set, fd, EPOLLIN));
    meet();
}

static void mistakes(const Case *self) {
    (void)self;
    int fd = connected(), set = set_of(fd, EPOLLIN);
    struct epoll_event one = {EPOLLIN, {0}}, got[2];
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_ADD, set, &one));
    R(epoll_ctl(set, EPOLL_CTL_ADD, -1, &one));
    R(epoll_ctl(set, EPOLL_CTL_ADD, temporary("x", 1), &one));
    R(epoll_ctl(fd, EPOLL_CTL_ADD, set, &one));
    R(epoll_ctl(set, 17, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL));
    R(epoll_wait(set, got, 0, 0));
    R(epoll_wait(fd, got, 1, 0));
    R(epoll_wait(-1, got, 1, 0));
    R(epoll_create(0));
    R(epoll_create1(77));
    one.events = EPOLLIN | EPOLLEXCLUSIVE;
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, &one));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    one.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, &one));
    meet();
}

static void exclusive(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    int one = set_of(fd, EPOLLIN | EPOLLEXCLUSIVE), two = set_of(fd, EPOLLIN | EPOLLEXCLUSIVE);
    fed(fd, 4);
    look("one", one, 5000);
    look("two", two, 5000);
    meet();
}

static void several_sets(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    int one = set_of(fd, EPOLLIN), two = set_of(fd, EPOLLIN | EPOLLET), three = set_of(fd, EPOLLOUT);
    fed(fd, 4);
    look("one", one, 5000);
    look("two", two, 5000);
    look("three", three, 5000);
    R(close(one));
    look("two", two, 30);
    R(recv(fd, buffer, 10, 0));
    look("three", three, 5000);
    meet();
}

static void nested(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 2);
    int inner = set_of(fd, EPOLLIN), outer = set_of(inner, EPOLLIN);
    look("outer before", outer, 30);
    fed(fd, 4);
    look("outer", outer, 5000);
    struct pollfd one = {inner, POLLIN, 0};
    R(poll(&one, 1, 5000));
    line("poll of a set: %s", events_name(one.revents));
    look("inner", inner, 5000);
    R(recv(fd, buffer, 10, 0));
    look("outer, empty", outer, 30);
    one.revents = 0;
    R(poll(&one, 1, 30));
    fed(fd, 4);
    look("outer again", outer, 5000);
    meet();
}

static void closed_and_duplicated(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 2);
    int set = set_of(fd, EPOLLIN), copy = F(dup(fd));
    R(close(fd));
    fed(copy, 4);
    look("the set knows the connection, not the number", set, 5000);
    R(recv(copy, buffer, 4, 0));
    fed(copy, 4);
    look("still", set, 5000);
    R(close(copy));
    look("all closed", set, 30);
    meet();
}

// As event loops do that wait on one descriptor of a set and change it by another.
static void copied_before_use(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 3);
    int set = MUST(epoll_create1(0)), copy = MUST(dup(set));
    struct epoll_event one = {EPOLLIN, {.u64 = 0x0011223344556677}}, got[8];
    R(epoll_ctl(copy, EPOLL_CTL_ADD, fd, &one));
    for (int i = 0; i < 3; i++) {
        fed(fd, 4);
        int count = epoll_wait(set, got, 8, 5000);
        int is_right = count == 1 && got[0].data.u64 == one.data.u64;
        line("%d: %s, data %s", count, count == 1 ? events_name(got[0].events) : "-", is_right ? "as given" : "another");
        R(recv(fd, buffer, 100, 0));
        look("no more", set, 30);
    }
    meet();
}

// The set goes on by its other descriptor, and the first one's number is that of something else.
static void copied_and_closed(const Case *self) {
    int fd = connected();
    if (A) return feed(fd, 4);
    int set = set_of(fd, EPOLLIN | EPOLLET), copy = MUST(dup(set));
    if (self->one) {
        fed(fd, 4);
        look("first descriptor", set, 5000);
        R(recv(fd, buffer, 100, 0));
    }
    R(close(set));
    int other = MUST(eventfd(0, EFD_NONBLOCK));
    if (other != set) set = MUST(dup2(other, set));
    for (int i = self->one; i < 3; i++) {
        fed(fd, 4);
        look("second descriptor", copy, 5000);
        R(recv(fd, buffer, 100, 0));
        look("no more", copy, 30);
    }
    R(changed(copy, fd, EPOLLIN));
    fed(fd, 4);
    look("changed", copy, 5000);
    R(epoll_ctl(copy, EPOLL_CTL_DEL, fd, NULL));
    look("removed", copy, 30);
    meet();
}

static void closed_leaves_the_set(const Case *self) {
    (void)self;
    int first, second;
    connected_two(&first, &second);
    if (A) {
        meet();
        R(send(second, "x", 1, 0));
        meet();
        meet();
        return;
    }
    int set = set_of(first, EPOLLIN);
    R(close(first));
    R(dup2(second, first) == first); // the number has another connection
    meet();
    meet();
    await_bytes(first, 1);
    look("not in the set", set, 30);
    struct epoll_event one = {EPOLLIN, {0}};
    R(epoll_ctl(set, EPOLL_CTL_ADD, first, &one));
    look("in the set", set, 5000);
    meet();
}

static void *sends_later(void *fd) {
    pause_ms(50);
    if (send((int)(intptr_t)fd, "x", 1, 0) != 1) line("the thread could not send");
    return NULL;
}

static void added_while_waiting(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    fed(fd, 4);
    int pipes[2], set = MUST(epoll_create1(0));
    MUST(pipe(pipes));
    struct epoll_event one = {EPOLLIN, {0}};
    R(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &one));
    pid_t child = MUST(fork());
    if (child == 0) {
        pause_ms(50);
        one.data.fd = fd;
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &one); // wakes the parent, which waits in the same set
        _exit(0);
    }
    look("woken", set, 5000);
    await_child(child);
    meet();
}

static volatile bool stops;

static void *changes(void *set_and_fd) {
    int *both = set_and_fd;
    for (unsigned i = 0; !stops; i++) changed(both[0], both[1], i % 2 ? EPOLLIN : EPOLLIN | EPOLLOUT);
    changed(both[0], both[1], EPOLLIN);
    return NULL;
}

// One thread changes what another waits for; no byte's event may be lost.
static void changes_race(const Case *self) {
    (void)self;
    int fd = connected(), count = 300;
    if (A) {
        for (int i = 0; i < count; i++) {
            if (send(fd, "x", 1, 0) != 1 || recv(fd, buffer, 1, 0) != 1) break;
            if (i == count - 1) line("all were answered");
        }
        return;
    }
    int both[2] = {set_of(fd, EPOLLIN), fd}, answered = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, changes, both);
    while (answered < count) {
        struct epoll_event got;
        if (epoll_wait(both[0], &got, 1, 10000) != 1) break;
        if (!(got.events & EPOLLIN)) continue;
        if (recv(fd, buffer, 1, MSG_DONTWAIT) == 1 && send(fd, "y", 1, 0) == 1) answered++;
    }
    line("%d answered", answered);
    stops = true;
    pthread_join(thread, NULL);
}

static void mixed(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) return feed(fd, 1);
    int set = set_of(fd, EPOLLIN), event = eventfd(0, 0), pipes[2], both[2], timer = timerfd_create(CLOCK_MONOTONIC, 0);
    MUST(pipe(pipes));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both));
    int others[] = {event, pipes[0], both[0], timer};
    for (size_t i = 0; i < COUNT(others); i++) {
        struct epoll_event one = {EPOLLIN, {.fd = others[i]}};
        R(epoll_ctl(set, EPOLL_CTL_ADD, others[i], &one));
    }
    look("none", set, 30);
    R(write(event, &(uint64_t){1}, 8));
    look("the event", set, 5000);
    R(write(pipes[1], "x", 1));
    look("and the pipe", set, 5000);
    fed(fd, 4);
    look("and the connection", set, 5000);
    R(write(both[1], "x", 1));
    R(timerfd_settime(timer, 0, &(struct itimerspec){.it_value = {0, 1}}, NULL));
    pause_ms(5);
    look("and all", set, 5000);
    R(read(event, buffer, 8));
    R(recv(fd, buffer, 4, 0));
    look("three are left", set, 5000);
    meet();
}

static void wakes_by_others(const Case *self) {
    (void)self;
    int fd = connected(), pipes[2];
    MUST(pipe(pipes));
    int set = set_of(fd, EPOLLIN);
    struct epoll_event one = {EPOLLIN, {0}};
    R(epoll_ctl(set, EPOLL_CTL_ADD, pipes[0], &one));
    pid_t child = MUST(fork());
    if (child == 0) {
        pause_ms(50);
        _exit(write(pipes[1], "x", 1) == 1 ? 0 : 1);
    }
    look("the pipe", set, 5000);
    await_child(child);
    struct pollfd two[2] = {{fd, POLLIN, 0}, {pipes[0], POLLIN, 0}};
    R(poll(two, 2, 5000));
    line("%s and %s", events_name(two[0].revents), events_name(two[1].revents));
    meet();
}

static void several_in_poll(const Case *self) {
    (void)self;
    int first, second;
    connected_two(&first, &second);
    struct pollfd all[5] = {{first, POLLIN, 0}, {-1, POLLIN, 7}, {second, POLLOUT, 0}, {777, POLLIN, 0}, {first, 0, 0}};
    R(poll(all, 5, 5000));
    for (int i = 0; i < 5; i++) line("%d: %s", i, events_name(all[i].revents));
    meet();
    R(send(second, "x", 1, 0));
    await_bytes(second, 1);
    all[2].events = POLLIN;
    all[3].fd = -5;
    R(poll(all, 5, 5000));
    for (int i = 0; i < 5; i++) line("%d: %s", i, events_name(all[i].revents));
    R(poll(NULL, 0, 10));
    R(poll(all, 0, 10));
    void *volatile nowhere = (void *)8;
    R(poll(nowhere, 1, 0));
    fd_set in;
    FD_ZERO(&in);
    FD_SET(first, &in);
    FD_SET(second, &in);
    struct timeval time = {5, 0};
    R(select((first > second ? first : second) + 1, &in, NULL, NULL, &time));
    line("first %d, second %d", !!FD_ISSET(first, &in), !!FD_ISSET(second, &in));
    R(select(0, NULL, NULL, NULL, &(struct timeval){0, 1000}));
    R(select(-1, NULL, NULL, NULL, &(struct timeval){0, 1000}));
    R(select(1, NULL, NULL, NULL, &(struct timeval){-1, 0}));
    meet();
}

// A small server over one set, with many connections at once.
static void server(const Case *self) {
    unsigned mode = self->one ? EPOLLET : 0;
    enum { CLIENTS = 20 };
    int rounds = (int)self->two;
    if (A) {
        int port = hear(), fds[CLIENTS], good = 0;
        for (int i = 0; i < CLIENTS; i++) fds[i] = dialed(port);
        for (int round = 0; round < rounds; round++) {
            for (int i = 0; i < CLIENTS; i++) send_all(fds[i], pattern + i + round, 100 * (i + 1));
            for (int i = 0; i < CLIENTS; i++) {
                size_t count = 100 * (i + 1);
                good += read_all(fds[i], buffer, count) == count && !memcmp(buffer, pattern + i + round, count);
            }
        }
        line("%d of %d", good, CLIENTS * rounds);
        return;
    }
    int listening = listener_with(SOCK_NONBLOCK, 32), set = set_of(listening, EPOLLIN | mode), ended = 0;
    tell(port_of(listening));
    while (ended < CLIENTS) {
        struct epoll_event got[8];
        int count = epoll_wait(set, got, 8, 10000);
        if (count <= 0) break;
        for (int i = 0; i < count; i++) {
            int fd = got[i].data.fd, client;
            if (fd == listening) {
                while ((client = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                    struct epoll_event one = {EPOLLIN | mode, {.fd = client}};
                    MUST(epoll_ctl(set, EPOLL_CTL_ADD, client, &one));
                }
                continue;
            }
            ssize_t part;
            while ((part = recv(fd, buffer, 700, 0)) > 0) send_all(fd, buffer, part);
            if (part == 0) ended += close(fd) == 0;
        }
    }
    line("%d ended", ended);
}

static void thread_sends(const Case *self) {
    (void)self;
    int fd = connected();
    pthread_t thread;
    pthread_create(&thread, NULL, sends_later, (void *)(intptr_t)fd);
    look("from the peer's thread", set_of(fd, EPOLLIN), 5000);
    pthread_join(thread, NULL);
    meet();
}

void epoll_cases(void) {
    add("epoll/level", level, 0, 0);
    add("epoll/edge", edge, 0, 0);
    add("epoll/edge-both", edge_both, 0, 0);
    add("epoll/edge-of-the-end", edge_of_the_end, 0, 0);
    add("epoll/one-shot", one_shot, 0, 0);
    add("epoll/change", change, 0, 0);
    add("epoll/mistakes", mistakes, 0, 0);
    add("epoll/exclusive", exclusive, 0, 0);
    add("epoll/several-sets", several_sets, 0, 0);
    add("epoll/nested", nested, 0, 0);
    add("epoll/closed-and-duplicated", closed_and_duplicated, 0, 0);
    add("epoll/copied-before-use", copied_before_use, 0, 0);
    add("epoll/copied-and-closed-early", copied_and_closed, 0, 0);
    add("epoll/copied-and-closed-late", copied_and_closed, 1, 0);
    add("epoll/closed-leaves-the-set", closed_leaves_the_set, 0, 0);
    add("epoll/added-while-waiting", added_while_waiting, 0, 0);
    add("epoll/changes-race", changes_race, 0, 0);
    add("epoll/mixed", mixed, 0, 0);
    add("epoll/wakes-by-others", wakes_by_others, 0, 0);
    add("epoll/several-in-poll", several_in_poll, 0, 0);
    add("epoll/server-level", server, 0, 20);
    add("epoll/server-edge", server, 1, 20);
    // The other process ends while its connections leave TCP.
    add("epoll/server-edge-and-its-end", server, 1, 8);
    add("epoll/thread-sends", thread_sends, 0, 0);
}
