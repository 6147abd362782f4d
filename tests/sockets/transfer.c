// Every way to send with every way to receive: in small, in bulk, and where the receiver waits first.
#include "transfer.h"

#define SMALL 3000

static ssize_t by_write(int fd, const char *bytes, size_t count) { return write(fd, bytes, count); }
static ssize_t by_send(int fd, const char *bytes, size_t count) { return send(fd, bytes, count, 0); }
static ssize_t by_sendto(int fd, const char *bytes, size_t count) { return sendto(fd, bytes, count, 0, NULL, 0); }

// Three parts, of which one may be empty.
static int parts(struct iovec *into, const char *bytes, size_t count) {
    size_t third = count / 3;
    into[0] = (struct iovec){(char *)bytes, third};
    into[1] = (struct iovec){(char *)bytes + third, 0};
    into[2] = (struct iovec){(char *)bytes + third, count - third};
    return 3;
}

static ssize_t by_writev(int fd, const char *bytes, size_t count) {
    struct iovec vector[3];
    return writev(fd, vector, parts(vector, bytes, count));
}

static ssize_t by_sendmsg(int fd, const char *bytes, size_t count) {
    struct iovec vector[3];
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = parts(vector, bytes, count)};
    return sendmsg(fd, &message, 0);
}

// Two messages; the sum of what each took.
static ssize_t by_sendmmsg(int fd, const char *bytes, size_t count) {
    struct iovec vector[2] = {{(char *)bytes, count / 2}, {(char *)bytes + count / 2, count - count / 2}};
    struct mmsghdr both[2] = {{.msg_hdr = {.msg_iov = vector, .msg_iovlen = 1}},
                              {.msg_hdr = {.msg_iov = vector + 1, .msg_iovlen = 1}}};
    int sent = sendmmsg(fd, both, 2, 0);
    if (sent < 0) return -1;
    ssize_t total = 0;
    for (int i = 0; i < sent; i++) total += both[i].msg_len;
    return total;
}

static ssize_t by_sendfile(int fd, const char *bytes, size_t count) {
    int file = temporary(bytes, count);
    ssize_t sent = sendfile(fd, file, NULL, count);
    int saved = errno;
    close(file);
    errno = saved;
    return sent;
}

static ssize_t by_splice(int fd, const char *bytes, size_t count) {
    int pipes[2];
    MUST(pipe(pipes));
    if (count > 65536) MUST(fcntl(pipes[1], F_SETPIPE_SZ, count));
    if (count > 0 && write(pipes[1], bytes, count) != (ssize_t)count) return -2;
    ssize_t sent = splice(pipes[0], NULL, fd, NULL, count, 0);
    int saved = errno;
    close(pipes[0]);
    close(pipes[1]);
    errno = saved;
    return sent;
}

static ssize_t by_pwritev2(int fd, const char *bytes, size_t count) {
    struct iovec vector[3];
    return pwritev2(fd, vector, parts(vector, bytes, count), -1, 0);
}

const Sender senders[SENDERS] = {{"write", by_write},       {"writev", by_writev},     {"send", by_send},
                                 {"sendto", by_sendto},     {"sendmsg", by_sendmsg},   {"sendmmsg", by_sendmmsg},
                                 {"sendfile", by_sendfile}, {"splice", by_splice},     {"pwritev2", by_pwritev2}};

static ssize_t by_read(int fd, char *into, size_t count) { return read(fd, into, count); }
static ssize_t by_recv(int fd, char *into, size_t count) { return recv(fd, into, count, 0); }

static ssize_t by_recvfrom(int fd, char *into, size_t count) {
    struct sockaddr_in from;
    socklen_t length = sizeof(from);
    return recvfrom(fd, into, count, 0, (struct sockaddr *)&from, &length);
}

static ssize_t by_readv(int fd, char *into, size_t count) {
    struct iovec vector[3];
    return readv(fd, vector, parts(vector, into, count));
}

static ssize_t by_recvmsg(int fd, char *into, size_t count) {
    struct iovec vector[3];
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = parts(vector, into, count)};
    return recvmsg(fd, &message, 0);
}

static ssize_t by_recvmmsg(int fd, char *into, size_t count) {
    struct iovec vector = {into, count};
    struct mmsghdr one = {.msg_hdr = {.msg_iov = &vector, .msg_iovlen = 1}};
    int got = recvmmsg(fd, &one, 1, 0, NULL);
    return got < 0 ? -1 : got == 0 ? 0 : (ssize_t)one.msg_len;
}

static ssize_t by_splice_in(int fd, char *into, size_t count) {
    int pipes[2];
    MUST(pipe(pipes));
    ssize_t moved = splice(fd, NULL, pipes[1], NULL, count, 0);
    int saved = errno;
    if (moved > 0 && read(pipes[0], into, moved) != moved) moved = -2;
    close(pipes[0]);
    close(pipes[1]);
    errno = saved;
    return moved;
}

static ssize_t by_preadv2(int fd, char *into, size_t count) {
    struct iovec vector[3];
    return preadv2(fd, vector, parts(vector, into, count), -1, 0);
}

const Receiver receivers[RECEIVERS] = {{"read", by_read},       {"readv", by_readv},     {"recv", by_recv},
                                       {"recvfrom", by_recvfrom}, {"recvmsg", by_recvmsg}, {"recvmmsg", by_recvmmsg},
                                       {"splice", by_splice_in}, {"preadv2", by_preadv2}};

static void add_named(const char *family, const char *way, void (*run)(const Case *), int one, int two) {
    char name[100];
    snprintf(name, sizeof(name), "%s/%s", family, way);
    add(name, run, one, two);
}

void add_senders(const char *family, void (*run)(const Case *)) {
    for (int i = 0; i < SENDERS; i++) add_named(family, senders[i].name, run, i, 0);
}

void add_receivers(const char *family, void (*run)(const Case *)) {
    for (int i = 0; i < RECEIVERS; i++) add_named(family, receivers[i].name, run, i, 0);
}

// One direction: all bytes are there before the receiver's only call.
static void one_way(const Case *self, int fd, bool sends) {
    const Sender *sender = &senders[self->one];
    const Receiver *receiver = &receivers[self->two];
    if (sends) {
        R(sender->send(fd, pattern, SMALL));
        meet();
        return;
    }
    meet();
    await_bytes(fd, SMALL);
    memset(buffer, 0, SMALL);
    R(receiver->receive(fd, buffer, SMALL + 100));
    hash("received", buffer, SMALL);
}

static void transfer(const Case *self) {
    int fd = connected();
    one_way(self, fd, A);
    one_way(self, fd, B);
    R(close(fd));
}

#define BULK (700 * 1024)
#define SHORT_BULK 100000

static void receive_bulk(int fd, const Receiver *receiver) {
    size_t got = 0;
    ssize_t now = 0;
    while (got < BULK && (now = receiver->receive(fd, buffer + got, BULK - got)) > 0) got += now;
    if (got < BULK) line("stopped by %zd, %s", now, strerror(errno));
    hash("received", buffer, got);
}

static void send_bulk(int fd, const Sender *sender) {
    size_t sent = 0;
    ssize_t now;
    while (sent < BULK && (now = sender->send(fd, pattern + sent, BULK - sent)) > 0) sent += now;
    line("sent %zu", sent);
}

static void bulk_sender(const Case *self) {
    int fd = connected();
    if (A) send_bulk(fd, &senders[self->one]);
    else receive_bulk(fd, &receivers[0]);
    meet();
    if (B) send_bulk(fd, &senders[self->one]);
    else receive_bulk(fd, &receivers[0]);
}

static void bulk_receiver(const Case *self) {
    int fd = connected();
    if (A) send_bulk(fd, &senders[0]);
    else receive_bulk(fd, &receivers[self->one]);
    meet();
    if (B) send_bulk(fd, &senders[0]);
    else receive_bulk(fd, &receivers[self->one]);
}

// Connection after connection, each of which may be upgraded between any two calls of its receiver.
static void receive_in_turn(const Case *self) {
    for (int turn = 0; turn < 12; turn++) {
        int fd = connected();
        size_t done = 0;
        ssize_t now;
        if (A)
            while (done < SHORT_BULK && (now = send(fd, pattern + done, 1000, 0)) > 0) {
                done += now;
                if (done % 4000 == 0) pause_ms(1);
            }
        else
            while (done < SHORT_BULK && (now = receivers[self->one].receive(fd, buffer + done, SHORT_BULK - done)) > 0)
                done += now;
        hash(A ? "sent" : "received", A ? pattern : buffer, done);
        meet();
        R(close(fd));
    }
}

// The receiver is in its call before there are bytes.
static void waits_first(const Case *self) {
    int fd = connected();
    for (int turn = 0; turn < 2; turn++) {
        meet();
        if ((side == 'A') == (turn == 0)) {
            pause_ms(40);
            R(send(fd, "late", 4, 0));
        } else {
            R(receivers[self->one].receive(fd, buffer, 100));
            hash("received", buffer, 4);
        }
    }
}

// Small requests and answers by one pair of calls, many times.
static void ping_pong(const Case *self) {
    int fd = connected(), rounds = 0, on = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    for (; rounds < 500; rounds++) {
        char word[8];
        snprintf(word, sizeof(word), "%07d", rounds);
        if (A && (senders[self->one].send(fd, word, 8) != 8 || read_all(fd, buffer, 8) != 8 || memcmp(buffer, word, 8)))
            break;
        if (B && (read_all(fd, buffer, 8) != 8 || senders[self->one].send(fd, buffer, 8) != 8)) break;
    }
    line("%d rounds", rounds);
}

void transfer_cases(void) {
    for (int i = 0; i < SENDERS; i++)
        for (int j = 0; j < RECEIVERS; j++) {
            char name[100];
            snprintf(name, sizeof(name), "transfer/%s-%s", senders[i].name, receivers[j].name);
            add(name, transfer, i, j);
        }
    add_senders("bulk-send", bulk_sender);
    add_receivers("bulk-receive", bulk_receiver);
    add_receivers("receive-in-turn", receive_in_turn);
    add_receivers("receiver-waits", waits_first);
    add_senders("ping-pong", ping_pong);
}
