// Connecting, and names of both ends.
#include "body.h"

// B's port, on which nobody listens any more.
static int dead_port(void) {
    if (A) {
        int port = hear();
        meet();
        return port;
    }
    int listening = listener();
    MUST(close(listening));
    meet();
    return 0;
}

static int call(int fd, int port) {
    struct sockaddr_in address = server_address(port);
    return connect(fd, (struct sockaddr *)&address, sizeof(address));
}

static void refused(const Case *self) {
    (void)self;
    int port = dead_port();
    if (B) return meet();
    int fd = F(socket(AF_INET, SOCK_STREAM, 0));
    R(call(fd, port));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(recv(fd, buffer, 1, 0));
    R(call(fd, port));
    meet();
}

static void refused_then_accepted(const Case *self) {
    (void)self;
    int port = dead_port();
    if (A) {
        int fd = F(socket(AF_INET, SOCK_STREAM, 0));
        R(call(fd, port));
        R(call(fd, hear()));
        R(send(fd, "x", 1, 0));
        meet();
        return;
    }
    int listening = listener(), fd = F(accept(listening, NULL, NULL));
    R(recv(fd, buffer, 1, 0));
    meet();
}

static void twice(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener();
        F(accept(listening, NULL, NULL));
        meet();
        return;
    }
    int fd = F(socket(AF_INET, SOCK_STREAM, 0)), port = hear();
    R(call(fd, port));
    R(call(fd, port));
    R(listen(fd, 1));
    meet();
}

static void nonblocking_twice(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener();
        int fd = F(accept(listening, NULL, NULL));
        R(recv(fd, buffer, 1, 0));
        meet();
        return;
    }
    int fd = F(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), port = hear();
    R(call(fd, port));
    await_event(fd, POLLOUT);
    R(call(fd, port)); // tells that it is connected
    R(call(fd, port));
    R(send(fd, "x", 1, 0));
    meet();
}

static void nonblocking_refused_twice(const Case *self) {
    (void)self;
    int port = dead_port();
    if (B) return meet();
    int fd = F(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    R(call(fd, port));
    await_event(fd, POLLERR);
    R(call(fd, port)); // tells the error
    R(call(fd, port)); // a new attempt
    meet();
}

static void bad_arguments(const Case *self) {
    (void)self;
    if (B) return meet();
    int fd = F(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = server_address(9);
    void *volatile nowhere = (void *)8;
    R(connect(fd, (struct sockaddr *)&address, 4));
    R(connect(fd, nowhere, sizeof(address)));
    R(connect(-1, (struct sockaddr *)&address, sizeof(address)));
    address.sin_family = AF_INET6;
    R(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    int file = temporary("x", 1);
    address.sin_family = AF_INET;
    R(connect(file, (struct sockaddr *)&address, sizeof(address)));
    meet();
}

static void bound_first(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener();
        struct sockaddr_in from;
        socklen_t length = sizeof(from);
        F(accept(listening, (struct sockaddr *)&from, &length));
        line("the caller has the port that it told: %d", hear() == ntohs(from.sin_port));
        meet();
        return;
    }
    int fd = F(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    struct sockaddr_in own = {.sin_family = AF_INET};
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
    R(bind(fd, (struct sockaddr *)&own, sizeof(own)));
    int before = port_of(fd);
    R(call(fd, hear()));
    line("the port stays: %d", port_of(fd) == before);
    tell(before);
    meet();
}

static void print_name(const char *what, int result, const struct sockaddr_in *address, socklen_t length) {
    line("%s = %d, family %d, length %u", what, result, address->sin_family, length);
}

static void names(const Case *self) {
    (void)self;
    struct sockaddr_in own = {0}, other = {0};
    socklen_t length = sizeof(own);
    if (A) {
        int fd = F(socket(AF_INET, SOCK_STREAM, 0));
        print_name("getsockname of a new socket", getsockname(fd, (struct sockaddr *)&own, &length), &own, length);
        line("port %d", own.sin_port);
        R(getpeername(fd, (struct sockaddr *)&other, &length));
        R(close(fd));
    }
    int fd = connected();
    length = sizeof(own);
    print_name("getsockname", getsockname(fd, (struct sockaddr *)&own, &length), &own, length);
    length = sizeof(other);
    print_name("getpeername", getpeername(fd, (struct sockaddr *)&other, &length), &other, length);
    // The other side sees it the other way round.
    tell(own.sin_addr.s_addr);
    tell(own.sin_port);
    uint32_t address = hear();
    uint16_t port = hear();
    line("the peer has this name: %d", address == other.sin_addr.s_addr && port == other.sin_port);
    length = 4;
    R(getpeername(fd, (struct sockaddr *)&other, &length));
    line("length %u", length);
    R(shutdown(fd, SHUT_RDWR));
    meet();
    await_event(fd, POLLHUP);
    length = sizeof(other);
    R(getpeername(fd, (struct sockaddr *)&other, &length));
}

static void disconnect(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener(), fd = F(accept(listening, NULL, NULL));
        R(recv(fd, buffer, 1, 0));
        fd = F(accept(listening, NULL, NULL));
        R(recv(fd, buffer, 1, 0));
        meet();
        return;
    }
    int port = hear(), fd = dialed(port);
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    R(connect(fd, &none, sizeof(none)));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
    R(call(fd, port));
    R(send(fd, "x", 1, 0));
    meet();
}

// IPv4 addresses in sockets of IPv6, as Java and Node have them.
static void mapped(const Case *self) {
    (void)self;
    if (B) {
        int fd = F(socket(AF_INET6, SOCK_STREAM, 0)), off = 0;
        struct sockaddr_in6 any = {.sin6_family = AF_INET6}, from = {0};
        R(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)));
        R(bind(fd, (struct sockaddr *)&any, sizeof(any)));
        R(listen(fd, 5));
        socklen_t length = sizeof(from);
        MUST(getsockname(fd, (struct sockaddr *)&from, &length));
        tell(ntohs(from.sin6_port));
        int got = F(accept(fd, (struct sockaddr *)&from, &length));
        line("family %d, length %u, mapped %d", from.sin6_family, length, IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
        R(send(got, "hello", 5, 0));
        meet();
        return;
    }
    int fd = F(socket(AF_INET6, SOCK_STREAM, 0));
    struct sockaddr_in plain = server_address(hear());
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = plain.sin_port};
    address.sin6_addr.s6_addr[10] = address.sin6_addr.s6_addr[11] = 0xff;
    memcpy(&address.sin6_addr.s6_addr[12], &plain.sin_addr, 4);
    R(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    R(recv(fd, buffer, 5, MSG_WAITALL));
    meet();
}

// One process with both ends, as tests of programs have them.
static void within_one_process(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener_with(0, 8);
        int fd = dialed(port_of(listening));
        int other = F(accept(listening, NULL, NULL));
        R(send(fd, "there", 5, 0));
        await_bytes(other, 5);
        R(recv(other, buffer, 100, 0));
        R(send(other, "and back", 8, 0));
        await_bytes(fd, 8);
        R(recv(fd, buffer, 100, 0));
        R(close(fd));
        R(recv(other, buffer, 100, 0));
    }
    meet();
}

static void many(const Case *self) {
    int count = self->one, fds[200], good = 0;
    if (A) {
        int port = hear();
        for (int i = 0; i < count; i++) fds[i] = dialed(port);
        for (int i = 0; i < count; i++) good += send(fds[i], &i, sizeof(i), 0) == sizeof(i);
        line("%d sent", good);
        good = 0;
        for (int i = 0, got; i < count; i++) good += read_all(fds[i], (char *)&got, sizeof(got)) == 4 && got == i;
        line("%d came back", good);
        meet();
        return;
    }
    int listening = listener_with(0, 256);
    tell(port_of(listening));
    for (int i = 0, got; i < count; i++) {
        fds[i] = MUST(accept(listening, NULL, NULL));
        if (read_all(fds[i], (char *)&got, sizeof(got)) == sizeof(got))
            good += send(fds[i], &got, sizeof(got), 0) == sizeof(got);
    }
    line("%d answered", good);
    meet();
}

// Other sockets are left alone.
static void other_kinds(const Case *self) {
    (void)self;
    if (B) return meet();
    int both[2];
    R(socketpair(AF_UNIX, SOCK_STREAM, 0, both));
    R(send(both[0], "unix", 4, 0));
    R(recv(both[1], buffer, 100, 0));
    int one = F(socket(AF_INET, SOCK_DGRAM, 0)), two = F(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    R(bind(two, (struct sockaddr *)&address, sizeof(address)));
    address.sin_port = htons(port_of(two));
    R(sendto(one, "datagram", 8, 0, (struct sockaddr *)&address, sizeof(address)));
    R(recv(two, buffer, 100, 0));
    R(connect(one, (struct sockaddr *)&address, sizeof(address)));
    R(send(one, "again", 5, 0));
    R(recv(two, buffer, 100, 0));
    F(socket(AF_INET, SOCK_STREAM, 99));
    F(socket(AF_INET, 77, 0));
    F(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    meet();
}

void connect_cases(void) {
    add("connect/refused", refused, 0, 0);
    add("connect/refused-then-accepted", refused_then_accepted, 0, 0);
    add("connect/twice", twice, 0, 0);
    add("connect/nonblocking-twice", nonblocking_twice, 0, 0);
    add("connect/nonblocking-refused-twice", nonblocking_refused_twice, 0, 0);
    add("connect/bad-arguments", bad_arguments, 0, 0);
    add("connect/bound-first", bound_first, 0, 0);
    add("connect/names", names, 0, 0);
    add("connect/disconnect", disconnect, 0, 0);
    add("connect/mapped", mapped, 0, 0);
    add("connect/within-one-process", within_one_process, 0, 0);
    add("connect/20", many, 20, 0);
    add("connect/200", many, 200, 0);
    add("connect/other-kinds", other_kinds, 0, 0);
}
