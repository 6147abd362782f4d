// The ends of connections: shutdown each way, close with and without unread bytes, linger, processes that die.
#include "body.h"

static const int hows[] = {SHUT_RD, SHUT_WR, SHUT_RDWR};

static void shut(const Case *self) {
    int fd = connected(), how = hows[self->one];
    char shuts = "AB"[self->two];
    if (side == shuts) {
        R(shutdown(fd, how));
        meet();
        if (how != SHUT_RD) R(send(fd, "x", 1, MSG_NOSIGNAL));
        if (how != SHUT_WR) R(recv(fd, buffer, 10, 0));
        R(shutdown(fd, how));
        meet();
        meet();
        if (how == SHUT_WR) await_bytes(fd, 3);
        if (how == SHUT_WR) R(recv(fd, buffer, 10, 0));
        if (how == SHUT_RD) R(send(fd, "out", 3, 0));
        meet();
        return;
    }
    meet();
    meet();
    if (how != SHUT_RD) R(recv(fd, buffer, 10, 0));
    if (how == SHUT_WR) R(send(fd, "in!", 3, 0));
    meet();
    if (how == SHUT_RD) {
        await_bytes(fd, 3);
        R(recv(fd, buffer, 10, 0));
    }
    meet();
}

static void read_side_shut_and_bytes_come(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(shutdown(fd, SHUT_RD));
        meet();
        meet();
        await_bytes(fd, 5);
        R(recv(fd, buffer, 10, 0));
        R(recv(fd, buffer, 10, 0));
        meet();
        return;
    }
    meet();
    R(send(fd, "there", 5, 0));
    meet();
    meet();
}

static void shut_one_then_the_other(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(shutdown(fd, SHUT_WR));
        R(shutdown(fd, SHUT_RD));
        meet();
        meet();
        R(recv(fd, buffer, 1, 0));
    } else {
        meet();
        R(recv(fd, buffer, 1, 0));
        R(shutdown(fd, SHUT_WR));
        meet();
    }
    await_event(fd, POLLHUP);
    meet();
    pause_ms(20);
    R(shutdown(fd, SHUT_WR));
    R(shutdown(fd, SHUT_RDWR));
    R(close(fd));
}

static void shut_wrongly(const Case *self) {
    (void)self;
    R(shutdown(F(socket(AF_INET, SOCK_STREAM, 0)), SHUT_WR));
    R(shutdown(-1, SHUT_WR));
    R(shutdown(temporary("x", 1), SHUT_WR));
    int fd = connected();
    R(shutdown(fd, 3));
    R(shutdown(fd, -1));
    R(send(fd, "x", 1, 0));
    R(recv(fd, buffer, 1, 0));
    meet();
}

// Everything that was sent arrives, though the sender has closed.
static void close_after_sending(const Case *self) {
    int fd = connected();
    size_t count = self->one;
    if (A) {
        line("sent %zu", send_all(fd, pattern, count));
        R(close(fd));
        return;
    }
    pause_ms(30);
    line("got %zu", read_all(fd, buffer, sizeof(buffer)));
    hash("received", buffer, count);
    R(recv(fd, buffer, 1, 0));
}

static void close_with_unread(const Case *self) {
    int fd = connected();
    if (self->one) {
        // Bytes of the other direction, which the reset throws away or not; here none.
        R(send(fd, "x", 1, 0));
        await_bytes(fd, 1);
    } else if (A) {
        R(send(fd, "x", 1, 0));
    } else {
        await_bytes(fd, 1);
    }
    meet();
    if (B) {
        R(close(fd));
        meet();
        return;
    }
    meet();
    await_event(fd, POLLERR);
    R(recv(fd, buffer, 10, 0));
    R(recv(fd, buffer, 10, 0));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
}

static void linger(const Case *self) {
    int fd = connected();
    struct linger wanted = {1, self->one}, got = {0};
    socklen_t length = sizeof(got);
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &wanted, sizeof(wanted)));
    R(getsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &length));
    line("linger %d %d", got.l_onoff, got.l_linger);
    meet();
    if (A) {
        R(send(fd, "last", 4, 0));
        meet();
        R(close(fd));
        meet();
        return;
    }
    await_bytes(fd, 4);
    meet();
    meet();
    if (self->one == 0) await_event(fd, POLLERR);
    R(recv(fd, buffer, 10, 0));
    R(recv(fd, buffer, 10, 0));
}

static void linger_of_much(const Case *self) {
    (void)self;
    int fd = connected();
    struct linger wanted = {1, 10};
    if (A) {
        R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &wanted, sizeof(wanted)));
        line("sent %zu", send_all(fd, pattern, 300000));
        R(close(fd)); // blocks until the peer's host has all
        return;
    }
    pause_ms(50);
    line("got %zu", read_all(fd, buffer, sizeof(buffer)));
    hash("received", buffer, 300000);
}

// How a process ends that has a connection open.
static void process_ends(const Case *self) {
    int fd = connected();
    if (B) {
        R(recv(fd, buffer, 10, MSG_WAITALL));
        R(recv(fd, buffer, 10, 0));
        meet();
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        if (send(fd, "dying", 5, 0) != 5) _exit(9);
        if (self->one == 0) _exit(7);
        if (self->one == 1) raise(SIGKILL);
        if (self->one == 2) abort();
        exit(8);
    }
    close(fd);
    await_child(child);
    meet();
}

static void process_dies_with_unread(const Case *self) {
    (void)self;
    int fd = connected();
    if (B) {
        R(send(fd, "nobody reads this", 17, 0));
        meet();
        await_event(fd, POLLERR);
        R(recv(fd, buffer, 10, 0));
        return;
    }
    await_bytes(fd, 17);
    pid_t child = MUST(fork());
    if (child == 0) {
        pause_ms(50);
        raise(SIGKILL);
    }
    close(fd);
    await_child(child);
    meet();
}

static void request_and_answer_to_the_end(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        line("sent %zu", send_all(fd, pattern, 100000));
        R(shutdown(fd, SHUT_WR));
        line("got %zu", read_all(fd, buffer, sizeof(buffer)));
        hash("received", buffer, 200000);
        R(close(fd));
        return;
    }
    line("got %zu", read_all(fd, buffer, sizeof(buffer)));
    hash("received", buffer, 100000);
    line("sent %zu", send_all(fd, pattern + 1000, 200000));
    R(close(fd));
}

// Proxies take a short read for the last one once poll or epoll has told the end. So it is told only where all bytes are
// there to be read.
static void end_is_told_with_all_bytes(const Case *self) {
    bool by_epoll = self->one;
    int early = 0, whole = 0;
    if (A) {
        int port = hear();
        for (int i = 0; i < 60; i++) {
            int fd = dialed(port), set = MUST(epoll_create1(0));
            set_blocking(fd, false);
            MUST(send(fd, "x", 1, 0));
            struct epoll_event one = {EPOLLIN | EPOLLRDHUP, {.fd = fd}};
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &one));
            struct pollfd same = {fd, POLLIN | POLLRDHUP, 0};
            size_t total = 0;
            for (bool told = false; !told;) {
                if ((by_epoll ? epoll_wait(set, &one, 1, 10000) : poll(&same, 1, 10000)) != 1) broken("poll", "end", i);
                told = (by_epoll ? one.events : (unsigned)same.revents) & (EPOLLRDHUP | EPOLLHUP);
                ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
                if (got > 0) total += got;
                // All that was there fitted.
                if (told && got > 0 && (got = recv(fd, buffer, sizeof(buffer), 0)) > 0) total += got, early++;
                if (got == 0) break;
            }
            whole += total == 60000;
            MUST(close(set));
            MUST(close(fd));
        }
        line("%d were told early, %d had all", early, whole);
        return;
    }
    int listening = listener();
    for (int i = 0; i < 60; i++) {
        int fd = MUST(accept(listening, NULL, NULL));
        if (read_all(fd, buffer, 1) != 1) broken("recv", "end", i);
        for (int piece = 0; piece < 20; piece++) {
            if (send_all(fd, pattern, 3000) != 3000) broken("send", "end", i);
            if (piece % 5 == i % 5) sched_yield();
        }
        MUST(close(fd));
    }
}

static void many_short_ones(const Case *self) {
    (void)self;
    int good = 0;
    if (A) {
        int port = hear();
        for (int i = 0; i < 200; i++) {
            int fd = dialed(port);
            good += send(fd, "ping", 4, 0) == 4 && read_all(fd, buffer, 100) == 4;
            MUST(close(fd));
        }
        line("%d of 200", good);
        return;
    }
    int listening = listener();
    for (int i = 0; i < 200; i++) {
        int fd = MUST(accept(listening, NULL, NULL));
        good += read_all(fd, buffer, 4) == 4 && send(fd, "pong", 4, 0) == 4;
        MUST(close(fd));
    }
    line("%d of 200", good);
}

void ending_cases(void) {
    static const char *names[] = {"rd", "wr", "rdwr"};
    for (int how = 0; how < 3; how++)
        for (int who = 0; who < 2; who++) {
            char name[100];
            snprintf(name, sizeof(name), "end/shut-%s-by-%s", names[how], who ? "server" : "client");
            add(name, shut, how, who);
        }
    add("end/read-side-shut-and-bytes-come", read_side_shut_and_bytes_come, 0, 0);
    add("end/shut-one-then-the-other", shut_one_then_the_other, 0, 0);
    add("end/shut-wrongly", shut_wrongly, 0, 0);
    add("end/close-after-5-bytes", close_after_sending, 5, 0);
    add("end/close-after-900000-bytes", close_after_sending, 900000, 0);
    add("end/close-with-unread", close_with_unread, 0, 0);
    add("end/close-with-unread-both-ways", close_with_unread, 1, 0);
    add("end/linger-0", linger, 0, 0);
    add("end/linger-5", linger, 5, 0);
    add("end/linger-of-much", linger_of_much, 0, 0);
    add("end/process-exits", process_ends, 0, 0);
    add("end/process-is-killed", process_ends, 1, 0);
    add("end/process-aborts", process_ends, 2, 0);
    add("end/process-exits-in-order", process_ends, 3, 0);
    add("end/process-dies-with-unread", process_dies_with_unread, 0, 0);
    add("end/request-and-answer", request_and_answer_to_the_end, 0, 0);
    add("end/told-with-all-bytes-by-poll", end_is_told_with_all_bytes, 0, 0);
    add("end/told-with-all-bytes-by-epoll", end_is_told_with_all_bytes, 1, 0);
    add("end/200-short-ones", many_short_ones, 0, 0);
}
