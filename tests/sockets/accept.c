// Listening and accepting.
#include "body.h"
#include <sys/resource.h>

static void nothing_waits(const Case *self) {
    (void)self;
    if (A) return meet();
    int listening = listener_with(SOCK_NONBLOCK, 8);
    R(accept(listening, NULL, NULL));
    R(accept4(listening, NULL, NULL, SOCK_CLOEXEC));
    R(accept4(listening, NULL, NULL, 12345));
    R(accept(temporary("x", 1), NULL, NULL));
    R(accept(-1, NULL, NULL));
    R(accept(F(socket(AF_INET, SOCK_STREAM, 0)), NULL, NULL));
    R(accept(F(socket(AF_INET, SOCK_DGRAM, 0)), NULL, NULL));
    R(listen(F(socket(AF_INET, SOCK_DGRAM, 0)), 1));
    R(recv(listening, buffer, 1, 0));
    R(send(listening, "x", 1, MSG_NOSIGNAL));
    meet();
}

static void flags(const Case *self) {
    int wanted = self->one;
    if (A) {
        int fd = dialed(hear());
        R(send(fd, "x", 1, 0));
        meet();
        return;
    }
    // The flags of the listening socket are not those of the accepted one.
    int listening = listener_with(SOCK_NONBLOCK | SOCK_CLOEXEC, 8);
    tell(port_of(listening));
    await_event(listening, POLLIN);
    int fd = F(accept4(listening, NULL, NULL, wanted));
    line("nonblocking %d, close-on-exec %d", !!(fcntl(fd, F_GETFL) & O_NONBLOCK), fcntl(fd, F_GETFD) & FD_CLOEXEC);
    await_bytes(fd, 1);
    R(recv(fd, buffer, 10, 0));
    meet();
}

static void address(const Case *self) {
    (void)self;
    if (A) {
        int fd = dialed(hear());
        tell(port_of(fd));
        dialed(hear());
        meet();
        return;
    }
    int listening = listener();
    struct sockaddr_storage from;
    memset(&from, 0xee, sizeof(from));
    socklen_t length = sizeof(from);
    F(accept(listening, (struct sockaddr *)&from, &length));
    struct sockaddr_in *four = (struct sockaddr_in *)&from;
    line("length %u, family %d, port %d", length, four->sin_family, ntohs(four->sin_port) == hear());
    tell(port_of(listening));
    memset(&from, 0xee, sizeof(from));
    length = 3; // is cut, and tells its whole length
    F(accept(listening, (struct sockaddr *)&from, &length));
    line("length %u, bytes %x", length, ((unsigned char *)&from)[3]);
    meet();
}

static void late(const Case *self) {
    (void)self;
    if (A) {
        int fd = dialed(hear());
        R(send(fd, "before anyone accepts", 21, 0));
        R(shutdown(fd, SHUT_WR));
        meet();
        R(recv(fd, buffer, 100, 0));
        return;
    }
    int listening = listener();
    meet();
    int fd = F(accept(listening, NULL, NULL));
    line("got %zu", read_all(fd, buffer, 100));
    hash("received", buffer, 21);
    R(send(fd, "answer", 6, 0));
}

static void caller_has_gone(const Case *self) {
    bool resets = self->one;
    if (A) {
        int fd = dialed(hear());
        struct linger now = {1, 0};
        if (resets) MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
        else R(send(fd, "bye", 3, 0));
        R(close(fd));
        meet();
        meet();
        return;
    }
    int listening = listener();
    meet();
    pause_ms(50);
    int fd = F(accept(listening, NULL, NULL));
    R(recv(fd, buffer, 100, MSG_WAITALL));
    R(recv(fd, buffer, 100, 0));
    meet();
}

static void in_order(const Case *self) {
    (void)self;
    if (A) {
        int port = hear(), fds[5];
        for (int i = 0; i < 5; i++) {
            fds[i] = dialed(port);
            R(send(fds[i], &"12345"[i], 1, 0));
        }
        meet();
        meet();
        return;
    }
    int listening = listener();
    meet();
    for (int i = 0; i < 5; i++) {
        int fd = F(accept(listening, NULL, NULL));
        R(recv(fd, buffer, 1, 0));
        line("caller %c", buffer[0]);
    }
    meet();
}

// A listening socket that is closed resets those who wait.
static void closed_with_a_caller(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener();
        meet();
        R(close(listening));
        meet();
        return;
    }
    int fd = dialed(hear());
    meet();
    meet();
    await_event(fd, POLLERR);
    R(recv(fd, buffer, 1, 0));
}

static void shut_listener(const Case *self) {
    (void)self;
    if (A) return meet();
    int listening = listener_with(0, 8);
    R(shutdown(listening, SHUT_RD));
    R(accept(listening, NULL, NULL));
    R(listen(listening, 4));
    set_blocking(listening, false);
    R(accept(listening, NULL, NULL));
    meet();
}

static void *shuts(void *fd) {
    pause_ms(50);
    shutdown((int)(intptr_t)fd, SHUT_RDWR);
    return NULL;
}

static void shut_while_accepting(const Case *self) {
    (void)self;
    if (A) return meet();
    int listening = listener_with(0, 8);
    pthread_t thread;
    pthread_create(&thread, NULL, shuts, (void *)(intptr_t)listening);
    R(accept(listening, NULL, NULL));
    pthread_join(thread, NULL);
    meet();
}

static void inherited_options(const Case *self) {
    (void)self;
    if (A) {
        dialed(hear());
        meet();
        return;
    }
    int listening = listener_with(0, 8), on = 1, value = 0;
    struct timeval time = {0, 80000}, got = {0};
    R(setsockopt(listening, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)));
    R(setsockopt(listening, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    R(setsockopt(listening, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    R(accept(listening, NULL, NULL)); // after the time
    tell(port_of(listening));
    await_event(listening, POLLIN);
    int fd = F(accept(listening, NULL, NULL));
    socklen_t length = sizeof(value);
    R(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &length));
    line("keepalive %d", value);
    R(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length));
    line("nodelay %d", value);
    length = sizeof(got);
    R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &length));
    line("time %d ms", (int)(got.tv_usec / 1000));
    R(recv(fd, buffer, 1, 0));
    meet();
}

static void port_in_use(const Case *self) {
    (void)self;
    if (A) return meet();
    int listening = listener_with(0, 8), port = port_of(listening);
    struct sockaddr_in address = server_address(port);
    int other = F(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    R(bind(other, (struct sockaddr *)&address, sizeof(address)));
    R(setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
    R(bind(other, (struct sockaddr *)&address, sizeof(address)));
    R(close(listening));
    R(bind(other, (struct sockaddr *)&address, sizeof(address)));
    R(bind(other, (struct sockaddr *)&address, sizeof(address)));
    R(listen(other, 3));
    R(listen(other, 30));
    struct sockaddr_in foreign = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr("192.0.2.1")};
    R(bind(F(socket(AF_INET, SOCK_STREAM, 0)), (struct sockaddr *)&foreign, sizeof(foreign)));
    R(bind(F(socket(AF_INET, SOCK_STREAM, 0)), (struct sockaddr *)&foreign, 3));
    meet();
}

static void again_on_the_port(const Case *self) {
    (void)self;
    int port = 0;
    for (int life = 0; life < 3; life++) {
        if (A) {
            int fd = dialed(hear());
            R(recv(fd, buffer, 10, 0));
            R(recv(fd, buffer, 10, 0));
            R(close(fd));
            meet();
            continue;
        }
        int fd = MUST(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
        struct sockaddr_in address = server_address(port);
        MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
        R(bind(fd, (struct sockaddr *)&address, sizeof(address)));
        R(listen(fd, 5));
        port = port_of(fd);
        tell(port);
        int got = F(accept(fd, NULL, NULL));
        R(close(fd)); // the connection outlives it
        R(send(got, "life", 4, 0));
        R(close(got)); // first, so that its end of the address stays in TIME_WAIT
        meet();
    }
}

static void unbound(const Case *self) {
    (void)self;
    if (A) return meet();
    int fd = F(socket(AF_INET, SOCK_STREAM, 0)), value = -1;
    socklen_t length = sizeof(value);
    R(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length));
    line("listens %d", value);
    R(listen(fd, 0));
    line("it has a port: %d", port_of(fd) != 0);
    R(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &length));
    line("listens %d", value);
    meet();
}

static void shared_port(const Case *self) {
    (void)self;
    if (A) {
        int port = hear(), good = 0;
        for (int i = 0; i < 16; i++) good += read_all(dialed(port), buffer, 2) == 2;
        line("%d answered", good);
        meet();
        return;
    }
    int both[2], on = 1, answered = 0;
    struct sockaddr_in address = server_address(0);
    for (int i = 0; i < 2; i++) {
        both[i] = F(socket(AF_INET, SOCK_STREAM, 0));
        R(setsockopt(both[i], SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)));
        R(bind(both[i], (struct sockaddr *)&address, sizeof(address)));
        R(listen(both[i], 32));
        address.sin_port = htons(port_of(both[i]));
    }
    tell(ntohs(address.sin_port));
    while (answered < 16) {
        struct pollfd two[2] = {{both[0], POLLIN, 0}, {both[1], POLLIN, 0}};
        if (poll(two, 2, 10000) <= 0) break;
        for (int i = 0; i < 2; i++)
            if (two[i].revents) answered += send(accept(both[i], NULL, NULL), "ok", 2, 0) == 2;
    }
    line("%d answered", answered);
    meet();
}

static void no_descriptor_left(const Case *self) {
    (void)self;
    if (A) {
        int fd = dialed(hear());
        R(recv(fd, buffer, 10, 0));
        meet();
        return;
    }
    int listening = listener();
    await_event(listening, POLLIN);
    struct rlimit before, none;
    MUST(getrlimit(RLIMIT_NOFILE, &before));
    none = before;
    none.rlim_cur = 0;
    MUST(setrlimit(RLIMIT_NOFILE, &none));
    R(accept(listening, NULL, NULL));
    R(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setrlimit(RLIMIT_NOFILE, &before));
    int fd = F(accept(listening, NULL, NULL));
    R(send(fd, "welcome", 7, 0));
    meet();
}

void accept_cases(void) {
    add("accept/nothing-waits", nothing_waits, 0, 0);
    add("accept/flags-none", flags, 0, 0);
    add("accept/flags-nonblock", flags, SOCK_NONBLOCK, 0);
    add("accept/flags-cloexec", flags, SOCK_CLOEXEC, 0);
    add("accept/flags-both", flags, SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    add("accept/address", address, 0, 0);
    add("accept/late", late, 0, 0);
    add("accept/caller-closed", caller_has_gone, 0, 0);
    add("accept/caller-reset", caller_has_gone, 1, 0);
    add("accept/in-order", in_order, 0, 0);
    add("accept/closed-with-a-caller", closed_with_a_caller, 0, 0);
    add("accept/shut-listener", shut_listener, 0, 0);
    add("accept/shut-while-accepting", shut_while_accepting, 0, 0);
    add("accept/inherited-options", inherited_options, 0, 0);
    add("accept/port-in-use", port_in_use, 0, 0);
    add("accept/again-on-the-port", again_on_the_port, 0, 0);
    add("accept/unbound", unbound, 0, 0);
    add("accept/shared-port", shared_port, 0, 0);
    add("accept/no-descriptor-left", no_descriptor_left, 0, 0);
}
