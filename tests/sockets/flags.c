// Flags of send and recv, and what messages bring beside their bytes.
#include "body.h"

static void peek(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, "0123456789", 10, 0));
        meet();
        return;
    }
    await_bytes(fd, 10);
    R(recv(fd, buffer, 4, MSG_PEEK));
    hash("peeked", buffer, 4);
    R(recv(fd, buffer, 100, MSG_PEEK));
    hash("peeked", buffer, 10);
    R(recv(fd, buffer, 4, 0));
    R(recv(fd, buffer, 100, MSG_PEEK));
    hash("peeked", buffer, 6);
    struct iovec two[2] = {{buffer, 2}, {buffer + 10, 2}};
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
    R(recvmsg(fd, &message, MSG_PEEK));
    R(recv(fd, buffer, 100, 0));
    hash("received", buffer, 6);
    R(recv(fd, buffer, 100, MSG_PEEK | MSG_DONTWAIT));
    meet();
}

static void peek_waits(const Case *self) {
    (void)self;
    int fd = connected();
    meet();
    if (A) {
        pause_ms(40);
        R(send(fd, "abc", 3, 0));
        meet();
        return;
    }
    R(recv(fd, buffer, 3, MSG_PEEK));
    R(recv(fd, buffer, 3, 0));
    meet();
}

static void peek_at_the_end(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(shutdown(fd, SHUT_WR));
        meet();
        return;
    }
    R(recv(fd, buffer, 3, MSG_PEEK));
    R(recv(fd, buffer, 3, MSG_PEEK));
    R(recv(fd, buffer, 3, 0));
    meet();
}

static void wait_all(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        for (int i = 0; i < 3; i++) {
            R(send(fd, "four", 4, 0));
            pause_ms(30);
        }
        R(send(fd, "end", 3, 0));
        R(shutdown(fd, SHUT_WR));
        meet();
        return;
    }
    R(recv(fd, buffer, 12, MSG_WAITALL));
    hash("received", buffer, 12);
    R(recv(fd, buffer, 100, MSG_WAITALL)); // the end ends it
    R(recv(fd, buffer, 100, MSG_WAITALL));
    meet();
}

static void wait_all_peeking(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, "four", 4, 0));
        pause_ms(30);
        R(send(fd, "more", 4, 0));
        meet();
        return;
    }
    R(recv(fd, buffer, 8, MSG_PEEK | MSG_WAITALL));
    R(recv(fd, buffer, 8, MSG_WAITALL));
    hash("received", buffer, 8);
    meet();
}

static void wait_all_nonblocking(const Case *self) {
    (void)self;
    int fd = connected();
    R(recv(fd, buffer, 8, MSG_WAITALL | MSG_DONTWAIT));
    meet();
    R(send(fd, "four", 4, 0));
    await_bytes(fd, 4);
    R(recv(fd, buffer, 8, MSG_WAITALL | MSG_DONTWAIT));
    meet();
}

// Blocks that come while the connection is in use. Each read gives all that it asks for.
static void wait_all_blocks(const Case *self) {
    (void)self;
    int fd = connected(), whole = 0;
    const size_t size = sizeof(buffer) / 5;
    for (int i = 0; i < 30; i++) {
        if (A) whole += send(fd, pattern + i, size, 0) == (ssize_t)size;
        else whole += recv(fd, buffer, size, MSG_WAITALL) == (ssize_t)size && memcmp(buffer, pattern + i, size) == 0;
    }
    line("whole: %d", whole);
    meet();
}

// As servers do that look until they have seen enough to tell what comes, and take nothing before.
static void peek_until_enough(const Case *self) {
    int fd = connected();
    if (A) {
        R(send(fd, "four", 4, 0));
        struct pollfd answer = {fd, POLLIN, 0};
        for (int i = 0; i < self->one; i++) poll(&answer, 1, 1);
        R(send(fd, "more", 4, 0));
        meet();
        return;
    }
    ssize_t seen = 0;
    for (int i = 0; i < 500 && seen != 8; i++) {
        seen = recv(fd, buffer, 8, MSG_PEEK);
        if (seen != 8) pause_ms(10);
    }
    int counted = 0;
    for (int i = 0; i < 500 && counted != 8; i++) {
        MUST(ioctl(fd, FIONREAD, &counted));
        if (counted != 8) pause_ms(10);
    }
    line("seen: %zd, counted: %d", seen, counted);
    R(recv(fd, buffer, 8, MSG_WAITALL));
    hash("received", buffer, 8);
    meet();
}

static void wait_all_messages(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, pattern, 5, 0));
        pause_ms(30);
        R(send(fd, pattern + 5, 5, 0));
        meet();
        return;
    }
    struct iovec two[2] = {{buffer, 3}, {buffer + 3, 7}};
    struct msghdr message = {.msg_iov = two, .msg_iovlen = 2};
    R(recvmsg(fd, &message, MSG_WAITALL));
    hash("received", buffer, 10);
    meet();
}

static void dont_wait(const Case *self) {
    (void)self;
    int fd = connected();
    R(recv(fd, buffer, 1, MSG_DONTWAIT));
    line("the socket itself blocks: %d", !(fcntl(fd, F_GETFL) & O_NONBLOCK));
    meet();
    if (A) {
        long total = 0;
        ssize_t now;
        while ((now = send(fd, pattern, 60000, MSG_DONTWAIT)) > 0) total += now;
        line("at last %s", errno_name(errno));
        tell(total);
    } else {
        long total = hear();
        char *all = malloc(total);
        line("all arrived: %d", read_all(fd, all, total) == (size_t)total);
    }
}

static void no_signal(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(shutdown(fd, SHUT_WR));
        R(send(fd, "x", 1, MSG_NOSIGNAL));
        line("signals: %d", sigpipes);
        R(send(fd, "x", 1, 0));
        line("signals: %d", sigpipes);
        struct msghdr message = {.msg_iov = &(struct iovec){buffer, 1}, .msg_iovlen = 1};
        R(sendmsg(fd, &message, MSG_NOSIGNAL));
        line("signals: %d", sigpipes);
        R(write(fd, "x", 1));
        line("signals: %d", sigpipes);
    }
    meet();
}

static void more(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, "one ", 4, MSG_MORE));
        R(send(fd, "two ", 4, MSG_MORE));
        R(send(fd, "three", 5, 0));
        meet();
        R(send(fd, "waits", 5, MSG_MORE));
        R(shutdown(fd, SHUT_WR));
        return;
    }
    await_bytes(fd, 13);
    R(recv(fd, buffer, 100, 0));
    hash("received", buffer, 13);
    meet();
    R(recv(fd, buffer, 100, MSG_WAITALL));
}

static void cork(const Case *self) {
    (void)self;
    int fd = connected(), on = 1, off = 0;
    if (A) {
        R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
        R(send(fd, "header ", 7, 0));
        R(send(fd, "body", 4, 0));
        R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)));
        meet();
        return;
    }
    await_bytes(fd, 11);
    R(recv(fd, buffer, 100, 0));
    hash("received", buffer, 11);
    meet();
}

static void urgent(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, "ab", 2, 0));
        R(send(fd, "!", 1, MSG_OOB));
        R(send(fd, "cd", 2, 0));
        meet();
        return;
    }
    R(recv(fd, buffer, 1, MSG_OOB | MSG_DONTWAIT) >= -1);
    meet();
    R(read_all(fd, buffer, 4));
    hash("received", buffer, 4);
}

static void urgent_where_none_is(const Case *self) {
    (void)self;
    int fd = connected();
    R(recv(fd, buffer, 1, MSG_OOB));
    meet();
}

static void discard(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, "0123456789", 10, 0));
        meet();
        return;
    }
    await_bytes(fd, 10);
    memset(buffer, '-', 10);
    R(recv(fd, buffer, 6, MSG_TRUNC));
    line("first byte %c", buffer[0]);
    R(recv(fd, buffer, 100, 0));
    hash("received", buffer, 4);
    meet();
}

static void error_queue(const Case *self) {
    (void)self;
    int fd = connected();
    R(send(fd, "x", 1, 0));
    await_bytes(fd, 1);
    R(recv(fd, buffer, 1, MSG_ERRQUEUE));
    R(recv(fd, buffer, 1, 0));
    meet();
}

// Names and control data of a stream's messages: there are none.
static void beside_the_bytes(const Case *self) {
    (void)self;
    int fd = connected();
    R(send(fd, "abc", 3, 0));
    await_bytes(fd, 3);
    struct sockaddr_in from;
    socklen_t length = sizeof(from);
    memset(&from, 0, sizeof(from));
    R(recvfrom(fd, buffer, 1, 0, (struct sockaddr *)&from, &length));
    line("length %u, family %d", length, from.sin_family);
    char control[100];
    struct iovec one = {buffer, 1};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &one, .msg_iovlen = 1};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    message.msg_flags = -1;
    R(recvmsg(fd, &message, 0));
    line("name %u, control %zu, flags %x", message.msg_namelen, message.msg_controllen, message.msg_flags);
    message.msg_flags = -1;
    R(recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    line("flags %x", (unsigned)message.msg_flags);
    meet();
}

static void named_destination(const Case *self) {
    (void)self;
    int fd = connected();
    struct sockaddr_in address = server_address(9);
    R(sendto(fd, "abc", 3, 0, (struct sockaddr *)&address, sizeof(address)));
    struct msghdr message = {.msg_name = &address, .msg_namelen = sizeof(address)};
    message.msg_iov = &(struct iovec){"def", 3};
    message.msg_iovlen = 1;
    R(sendmsg(fd, &message, 0));
    await_bytes(fd, 6);
    R(recv(fd, buffer, 100, 0));
    meet();
}

static void several_messages(const Case *self) {
    (void)self;
    int fd = connected();
    struct iovec vectors[3] = {{pattern, 10}, {pattern + 10, 20}, {pattern + 30, 30}};
    struct mmsghdr messages[3] = {0};
    if (A) {
        for (int i = 0; i < 3; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = vectors + i, .msg_iovlen = 1};
        R(sendmmsg(fd, messages, 3, 0));
        for (int i = 0; i < 3; i++) line("message of %u", messages[i].msg_len);
        R(sendmmsg(fd, messages, 0, 0));
        meet();
        return;
    }
    await_bytes(fd, 60);
    for (int i = 0; i < 3; i++) {
        vectors[i].iov_base = buffer + i * 25;
        vectors[i].iov_len = 25;
        messages[i].msg_hdr = (struct msghdr){.msg_iov = vectors + i, .msg_iovlen = 1};
    }
    R(recvmmsg(fd, messages, 3, MSG_DONTWAIT, NULL));
    for (int i = 0; i < 3; i++) line("message of %u", messages[i].msg_len);
    hash("received", buffer, 60);
    R(recvmmsg(fd, messages, 3, MSG_DONTWAIT, NULL));
    meet();
}

static void wait_for_one(const Case *self) {
    (void)self;
    int fd = connected();
    meet();
    if (A) {
        R(send(fd, "abc", 3, 0));
        meet();
        return;
    }
    struct iovec vectors[2] = {{buffer, 2}, {buffer + 2, 8}};
    struct mmsghdr messages[2] = {0};
    for (int i = 0; i < 2; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = vectors + i, .msg_iovlen = 1};
    await_bytes(fd, 3);
    R(recvmmsg(fd, messages, 2, MSG_WAITFORONE, NULL));
    line("messages of %u and %u", messages[0].msg_len, messages[1].msg_len);
    meet();
}

void flag_cases(void) {
    add("flags/peek", peek, 0, 0);
    add("flags/peek-waits", peek_waits, 0, 0);
    add("flags/peek-at-the-end", peek_at_the_end, 0, 0);
    add("flags/wait-all", wait_all, 0, 0);
    add("flags/wait-all-peeking", wait_all_peeking, 0, 0);
    add("flags/wait-all-nonblocking", wait_all_nonblocking, 0, 0);
    add("flags/wait-all-messages", wait_all_messages, 0, 0);
    add("flags/wait-all-blocks", wait_all_blocks, 0, 0);
    add("flags/peek-until-enough-after-1-ms", peek_until_enough, 1, 0);
    add("flags/peek-until-enough-after-20-ms", peek_until_enough, 20, 0);
    add("flags/peek-until-enough-after-100-ms", peek_until_enough, 100, 0);
    add("flags/dont-wait", dont_wait, 0, 0);
    add("flags/no-signal", no_signal, 0, 0);
    add("flags/more", more, 0, 0);
    add("flags/cork", cork, 0, 0);
    add("flags/urgent", urgent, 0, 0);
    add("flags/urgent-where-none-is", urgent_where_none_is, 0, 0);
    add("flags/discard", discard, 0, 0);
    add("flags/error-queue", error_queue, 0, 0);
    add("flags/beside-the-bytes", beside_the_bytes, 0, 0);
    add("flags/named-destination", named_destination, 0, 0);
    add("flags/several-messages", several_messages, 0, 0);
    add("flags/wait-for-one", wait_for_one, 0, 0);
}
