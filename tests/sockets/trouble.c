// Every way to send and to receive where it cannot go on: nothing there, nothing fits, no connection, the end, bad
// arguments.
#include "transfer.h"

enum { MOMENTS = 12 };

static void eof(const Case *self) {
    int fd = connected();
    if (A) R(shutdown(fd, SHUT_WR));
    else R(receivers[self->one].receive(fd, buffer, 100));
    meet();
    // The end stays.
    if (B) R(receivers[self->one].receive(fd, buffer, 100));
    if (B) R(send(fd, "still", 5, 0));
    if (A) {
        await_bytes(fd, 5);
        R(receivers[self->one].receive(fd, buffer, 100));
    }
}

static void again(const Case *self) {
    int fd = connected();
    set_blocking(fd, false);
    R(receivers[self->one].receive(fd, buffer, 100));
    meet();
    R(send(fd, "x", 1, 0));
    await_bytes(fd, 1);
    R(receivers[self->one].receive(fd, buffer, 100));
    R(receivers[self->one].receive(fd, buffer, 100));
    meet();
}

static void receive_unconnected(const Case *self) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    R(receivers[self->one].receive(fd, buffer, 100));
}

static void send_unconnected(const Case *self) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    R(senders[self->one].send(fd, "x", 1));
}

static void receive_closed(const Case *self) {
    int fd = connected();
    R(close(fd));
    R(receivers[self->one].receive(fd, buffer, 100));
}

static void send_closed(const Case *self) {
    int fd = connected();
    R(close(fd));
    R(senders[self->one].send(fd, "x", 1));
}

static void after_shutdown(const Case *self) {
    int fd = connected();
    if (B) R(shutdown(fd, SHUT_WR));
    if (B) R(senders[self->one].send(fd, "x", 1));
    meet();
    if (A) R(send(fd, "other way", 9, 0));
    if (B) await_bytes(fd, 9);
    if (B) R(recv(fd, buffer, 100, 0));
}

// The peer has closed: the first bytes may still go, then there is no connection.
static void to_closed_peer(const Case *self) {
    int fd = connected();
    if (B) R(close(fd));
    meet();
    if (A) {
        await_event(fd, POLLRDHUP);
        R(send(fd, "x", 1, MSG_NOSIGNAL));
        await_event(fd, POLLERR | POLLHUP);
        int error = -1;
        socklen_t length = sizeof(error);
        R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
        line("SO_ERROR is %s", error ? errno_name(error) : "0");
        R(senders[self->one].send(fd, "x", 1));
    }
    meet();
}

static void receive_reset(const Case *self) {
    int fd = connected();
    if (B) {
        struct linger now = {1, 0};
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
        R(close(fd));
    }
    meet();
    if (A) {
        await_event(fd, POLLERR);
        R(receivers[self->one].receive(fd, buffer, 100));
        R(receivers[self->one].receive(fd, buffer, 100));
        R(send(fd, "x", 1, MSG_NOSIGNAL));
    }
}

static void nothing_to_send(const Case *self) {
    int fd = connected();
    if (A) {
        R(senders[self->one].send(fd, pattern, 0));
        R(send(fd, "after", 5, 0));
    } else {
        await_bytes(fd, 5);
        R(recv(fd, buffer, 100, 0));
    }
    meet();
}

static void no_room_to_receive(const Case *self) {
    int fd = connected();
    R(send(fd, "abc", 3, 0));
    await_bytes(fd, 3);
    R(receivers[self->one].receive(fd, buffer, 0));
    R(receivers[self->one].receive(fd, buffer, 100));
    meet();
}

// Nothing is there, and nothing is asked for: some calls say so at once.
static void nothing_of_nothing(const Case *self) {
    int fd = connected();
    set_blocking(fd, false);
    meet();
    R(receivers[self->one].receive(fd, buffer, 0));
    meet();
}

// A reads nothing and makes no further call, at another moment with each connection, and B asks for no bytes meanwhile.
static void no_room_while_the_other_rests(const Case *self) {
    for (int moment = 0; moment < MOMENTS; moment++) {
        int fd = connected(), received = 0;
        if (A) {
            MUST(send(fd, "abc", 3, 0));
            for (int looks = 0; looks < moment; looks++) {
                await_event(fd, POLLOUT);
                pause_ms(4);
            }
            hear();
        } else {
            await_bytes(fd, 3);
            for (int looks = 0; looks < 100; looks++) {
                received += receivers[self->one].receive(fd, buffer, 0) == 0;
                pause_ms(1);
            }
            line("%d times nothing", received);
            tell('n');
        }
        R(close(fd));
    }
}

static void full_then_drained(const Case *self) {
    int fd = connected();
    if (A) {
        int total = full(fd);
        line("something fitted: %d", total > 0);
        R(senders[self->one].send(fd, pattern, 100));
        tell(total);
        hear(); // the other side has taken them
        await_event(fd, POLLOUT);
        R(senders[self->one].send(fd, pattern, 100));
        meet();
        return;
    }
    size_t total = hear();
    char *all = malloc(total);
    line("all arrived: %d", read_all(fd, all, total) == total);
    tell(0);
    await_bytes(fd, 100);
    R(recv(fd, buffer, 1000, 0));
    hash("received", buffer, 100);
    meet();
}

static void bad_address(const Case *self) {
    (void)self;
    int fd = connected();
    void *volatile nowhere = (void *)8;
    if (A) {
        R(send(fd, nowhere, 100, 0));
        R(write(fd, nowhere, 100));
        struct iovec vector = {nowhere, 100};
        R(writev(fd, &vector, 1));
        R(send(fd, "good", 4, 0));
        meet();
        return;
    }
    meet();
    await_bytes(fd, 4);
    R(recv(fd, nowhere, 100, 0));
    R(read(fd, nowhere, 100));
    R(recv(fd, buffer, 100, 0));
    hash("received", buffer, 4);
}

static void bad_vectors(const Case *self) {
    (void)self;
    int fd = connected();
    static struct iovec many[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++) many[i] = (struct iovec){pattern + i, 1};
    volatile int negative = -1; // the compiler would refuse it
    R(writev(fd, many, negative));
    R(writev(fd, many, IOV_MAX + 1));
    R(writev(fd, many, 0));
    R(readv(fd, many, 0));
    R(readv(fd, many, negative));
    struct msghdr message = {.msg_iov = many, .msg_iovlen = IOV_MAX + 1};
    R(sendmsg(fd, &message, 0));
    struct msghdr none = {0};
    R(sendmsg(fd, &none, 0));
    many[0].iov_len = (size_t)-1;
    R(writev(fd, many, 1));
    many[0].iov_len = 1;
    R(writev(fd, many, IOV_MAX));
    await_bytes(fd, IOV_MAX);
    R(recv(fd, buffer, sizeof(buffer), 0));
    hash("received", buffer, IOV_MAX);
    meet();
}

void trouble_cases(void) {
    add_receivers("end-of-stream", eof);
    add_receivers("again", again);
    add_receivers("receive-unconnected", receive_unconnected);
    add_senders("send-unconnected", send_unconnected);
    add_receivers("receive-closed", receive_closed);
    add_senders("send-closed", send_closed);
    add_senders("send-after-shutdown", after_shutdown);
    add_senders("send-to-closed-peer", to_closed_peer);
    add_receivers("receive-reset", receive_reset);
    add_senders("send-nothing", nothing_to_send);
    add_receivers("receive-nothing", no_room_to_receive);
    add_receivers("receive-nothing-of-nothing", nothing_of_nothing);
    add_receivers("receive-nothing-from-one-who-rests", no_room_while_the_other_rests);
    add_senders("full", full_then_drained);
    add("bad-address", bad_address, 0, 0);
    add("bad-vectors", bad_vectors, 0, 0);
}
