// Socket options that servers and clients set: on a connection, read back, and bytes flow afterwards.
#include "body.h"

#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

static const struct {
    const char *name;
    int level, option, value;
    bool shows_first; // the value before is the same on every machine
} numbers[] = {
    {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR, 1, false},
    {"SO_REUSEPORT", SOL_SOCKET, SO_REUSEPORT, 1, true},
    {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1, true},
    {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE, 1, true},
    {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST, 1, true},
    {"SO_RCVBUF", SOL_SOCKET, SO_RCVBUF, 65536, false},
    {"SO_SNDBUF", SOL_SOCKET, SO_SNDBUF, 65536, false},
    {"SO_RCVLOWAT", SOL_SOCKET, SO_RCVLOWAT, 1, true},
    {"SO_PRIORITY", SOL_SOCKET, SO_PRIORITY, 3, true},
    {"SO_TYPE", SOL_SOCKET, SO_TYPE, 1, true},
    {"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN, 2, true},
    {"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL, 6, true},
    {"SO_ERROR", SOL_SOCKET, SO_ERROR, 0, true},
    {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN, 0, true},
    {"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1, true},
    {"SO_ZEROCOPY", SOL_SOCKET, SO_ZEROCOPY, 1, true},
    {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY, 1, true},
    {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE, 55, false},
    {"TCP_KEEPINTVL", IPPROTO_TCP, TCP_KEEPINTVL, 7, false},
    {"TCP_KEEPCNT", IPPROTO_TCP, TCP_KEEPCNT, 3, false},
    {"TCP_SYNCNT", IPPROTO_TCP, TCP_SYNCNT, 4, false},
    {"TCP_LINGER2", IPPROTO_TCP, TCP_LINGER2, 20, false},
    {"TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT, 1, true},
    {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 30000, true},
    {"TCP_NOTSENT_LOWAT", IPPROTO_TCP, TCP_NOTSENT_LOWAT, 16384, false},
    {"IP_TOS", IPPROTO_IP, IP_TOS, 0x10, true},
    {"IP_TTL", IPPROTO_IP, IP_TTL, 33, false},
    {"no-such-option", SOL_SOCKET, 9999, 1, true},
    {"no-such-tcp-option", IPPROTO_TCP, 9999, 1, true},
    {"no-such-level", 77, 1, 1, true},
};

static void exchange(int fd) {
    R(send(fd, "flows", 5, 0));
    R(recv(fd, buffer, 5, MSG_WAITALL));
}

static void number(const Case *self) {
    int fd = connected(), level = numbers[self->one].level, option = numbers[self->one].option;
    int value = numbers[self->one].value, got = -5;
    socklen_t length = sizeof(got);
    R(getsockopt(fd, level, option, &got, &length));
    if (numbers[self->one].shows_first) line("it is %d, length %u", got, length);
    R(setsockopt(fd, level, option, &value, sizeof(value)));
    got = -5;
    length = sizeof(got);
    R(getsockopt(fd, level, option, &got, &length));
    line("it is %d, length %u", got, length);
    R(setsockopt(fd, level, option, &value, 1));
    R(setsockopt(fd, level, option, NULL, sizeof(value)));
    length = 1;
    R(getsockopt(fd, level, option, &got, &length));
    line("length %u", length);
    exchange(fd);
    meet();
}

static void arguments(const Case *self) {
    (void)self;
    int fd = connected(), value = 1;
    socklen_t length = sizeof(value);
    void *volatile nowhere = (void *)8;
    R(getsockopt(fd, SOL_SOCKET, SO_TYPE, nowhere, &length));
    R(getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, nowhere));
    R(getsockopt(-1, SOL_SOCKET, SO_TYPE, &value, &length));
    R(setsockopt(temporary("x", 1), SOL_SOCKET, SO_KEEPALIVE, &value, sizeof(value)));
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof(value)));
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &value, sizeof(value)));
    length = 100;
    char text[100] = {0};
    R(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text, &length));
    line("it has a name: %d", text[0] != 0);
    R(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5));
    R(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "no-such", 7));
    R(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, text, &length));
    line("%s", text);
    exchange(fd);
    meet();
}

static void information(const Case *self) {
    (void)self;
    int fd = connected();
    struct tcp_info info = {0};
    socklen_t length = sizeof(info);
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    line("state %d", info.tcpi_state);
    meet();
    R(shutdown(fd, SHUT_WR));
    await_event(fd, POLLHUP);
    meet();
    length = sizeof(info);
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length));
    line("still open: %d", info.tcpi_state == TCP_ESTABLISHED);
}

// A reader that wants many bytes at once is not told of fewer.
static void low_water(const Case *self) {
    int fd = connected(), value = 10;
    if (A) {
        R(send(fd, "12345", 5, 0));
        meet();
        meet();
        struct pollfd answer = {fd, POLLIN, 0};
        for (int i = 0; i < self->one; i++) poll(&answer, 1, 1);
        R(send(fd, "67890", 5, 0));
        meet();
        return;
    }
    R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value)));
    meet();
    await_bytes(fd, 5);
    struct pollfd one = {fd, POLLIN, 0};
    R(poll(&one, 1, 50));
    meet();
    R(poll(&one, 1, 10000));
    R(recv(fd, buffer, 100, 0));
    meet();
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static void receive_time(const Case *self) {
    (void)self;
    int fd = connected();
    struct timeval time = {0, 120000}, got = {0};
    socklen_t length = sizeof(got);
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &length));
    line("%ld s, %d us, length %u", (long)got.tv_sec, (int)got.tv_usec, length);
    meet();
    long long begin = now_ms();
    R(recv(fd, buffer, 10, 0));
    line("it waited: %d", now_ms() - begin >= 100);
    R(read(fd, buffer, 10));
    R(recv(fd, buffer, 10, MSG_WAITALL));
    meet();
    R(send(fd, "abc", 3, 0));
    meet();
    R(recv(fd, buffer, 10, MSG_WAITALL)); // what is there, after the time
    time = (struct timeval){0, 0};
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    time = (struct timeval){0, 2000000};
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    time = (struct timeval){-1, 0};
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
    meet();
}

static void send_time(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        struct timeval time = {0, 120000};
        R(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)));
        long total = full(fd);
        set_blocking(fd, true);
        long long begin = now_ms();
        R(send(fd, pattern, 300000, 0));
        line("it waited: %d", now_ms() - begin >= 100);
        tell(total);
        meet();
        return;
    }
    long total = hear();
    char *all = malloc(total);
    line("all arrived: %d", read_all(fd, all, total) == (size_t)total);
    R(recv(fd, buffer, 1, MSG_DONTWAIT));
    meet();
}

void option_cases(void) {
    for (size_t i = 0; i < COUNT(numbers); i++) {
        char name[100];
        snprintf(name, sizeof(name), "option/%s", numbers[i].name);
        add(name, number, (int)i, 0);
    }
    add("option/arguments", arguments, 0, 0);
    add("option/information", information, 0, 0);
    add("option/low-water", low_water, 0, 0);
    add("option/low-water-of-a-client-that-waits", low_water, 50, 0);
    add("option/receive-time", receive_time, 0, 0);
    add("option/send-time", send_time, 0, 0);
}
