// What a direction holds while nobody reads: as much as TCP, and no more than a program that chose its buffers wants.
#include "body.h"

#define PIECE 65536

static char taken[PIECE];

// Bytes of the next piece behind `done` of `count`. The pattern goes round.
static size_t piece(size_t done, size_t count) {
    size_t next = sizeof(pattern) - done % sizeof(pattern), left = count - done;
    if (next > PIECE) next = PIECE;
    return next < left ? next : left;
}

static size_t take_some(int fd, size_t count) {
    size_t done = 0;
    for (ssize_t now; done < count; done += now) {
        now = read(fd, taken, piece(done, count));
        if (now <= 0 || memcmp(taken, pattern + done % sizeof(pattern), now)) break;
    }
    return done;
}

static void take_all(int fd, size_t count) { line("taken as sent: %zu", take_some(fd, count)); }

// In large writes.
static size_t put_all(int fd, size_t count) {
    size_t done = 0;
    for (size_t sent; done < count; done += sent) {
        size_t left = count - done;
        if ((sent = send_all(fd, pattern, left < sizeof(pattern) ? left : sizeof(pattern))) == 0) break;
    }
    return done;
}

// Nobody reads before all is written.
static void write_all_first(const Case *self) {
    int fd = connected();
    size_t count = (size_t)self->one << 10;
    if (A) line("written: %d", put_all(fd, count) == count);
    meet();
    if (B) take_all(fd, count);
    meet();
}

// The client reads nothing of the echo before it has written all.
static void write_all_then_read(const Case *self) {
    int fd = connected();
    size_t count = (size_t)self->one << 10;
    for (int round = 0; round < 2; round++) {
        if (A) {
            line("written: %d", put_all(fd, count) == count);
            take_all(fd, count);
            continue;
        }
        for (size_t done = 0; done < count;) {
            ssize_t now = read(fd, taken, count - done < PIECE ? count - done : PIECE);
            if (now <= 0 || send_all(fd, taken, now) != (size_t)now) break;
            done += now;
        }
    }
    meet();
}

// What nobody has read is a child's to read.
static void child_takes_all(const Case *self) {
    int fd = connected();
    size_t count = (size_t)self->one << 10;
    if (A) line("written: %d", put_all(fd, count) == count);
    meet();
    if (B) {
        pid_t child = MUST(fork());
        if (child == 0) _exit(take_some(fd, count) == count ? 0 : 1);
        await_child(child);
    }
    meet();
}

enum { BY_POLL, BY_EPOLL, BY_EDGES };

// Waits for room before each piece, or, told by edges, behind one that found none.
static void wait_for_room_first(const Case *self) {
    int fd = connected(), set = MUST(epoll_create1(EPOLL_CLOEXEC));
    size_t count = (size_t)self->two << 10, done = 0;
    struct pollfd one = {fd, POLLOUT, 0};
    struct epoll_event event = {EPOLLOUT | (self->one == BY_EDGES ? EPOLLET : 0), {.fd = fd}};
    if (A) {
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        set_blocking(fd, false);
        while (done < count) {
            int ready = self->one == BY_POLL ? poll(&one, 1, 50000) : epoll_wait(set, &event, 1, 50000);
            if (ready != 1) break;
            ssize_t now;
            do {
                now = send(fd, pattern + done % sizeof(pattern), piece(done, count), MSG_NOSIGNAL);
                if (now > 0) done += now;
            } while (now > 0 && done < count && self->one == BY_EDGES);
            if (now < 0 && errno != EAGAIN) break;
        }
        line("written: %d", done == count);
    }
    meet();
    if (B) take_all(fd, count);
    meet();
    close(set);
}

// As socat and others relay: one thread writes a piece, in a call that waits, when it is told of room, and reads when it
// is told of bytes. The other end reads nothing while its answers find no room. So a call that waits for all of a piece
// where there is room for a part of it waits for ever.
static void relay_of_one_thread(const Case *self) {
    int fd = connected();
    size_t count = (size_t)self->one << 10, sent = 0, come = 0;
    if (B) set_blocking(fd, false);
    while (come < count || B && sent < count) {
        // A sends first, B what has come.
        bool wants_room = A ? sent < count : sent < come;
        bool wants_bytes = A || sent == come;
        struct pollfd one = {fd, (wants_room ? POLLOUT : 0) | (wants_bytes ? POLLIN : 0), 0};
        if (poll(&one, 1, 20000) != 1) break;
        if (one.revents & POLLOUT) {
            size_t next = piece(sent, A ? count : come);
            ssize_t now = send(fd, pattern + sent % sizeof(pattern), A && next > 8192 ? 8192 : next, MSG_NOSIGNAL);
            if (now < 0 && errno != EAGAIN) break;
            if (now > 0) sent += now;
        }
        if (one.revents & POLLIN) {
            size_t most = piece(come, count);
            ssize_t now = recv(fd, taken, A && most > 1024 ? 1024 : most, 0);
            if (now <= 0 || memcmp(taken, pattern + come % sizeof(pattern), now)) break;
            come += now;
        }
    }
    line("%zu there, %zu back", sent, come);
    meet();
}

static void set_buffer(int fd, int name, int bytes) {
    int got = 0;
    socklen_t length = sizeof(got);
    R(setsockopt(fd, SOL_SOCKET, name, &bytes, sizeof(bytes)));
    R(getsockopt(fd, SOL_SOCKET, name, &got, &length));
    line("it is %d", got);
}

// So much is taken of a sender that chose its buffer, about as on TCP.
static void chosen_sender(const Case *self) {
    int fd = connected();
    if (A) {
        set_buffer(fd, SO_SNDBUF, self->one);
        long total = full(fd);
        struct pollfd out = {fd, POLLOUT, 0};
        line("about that: %d", total >= self->one && total <= 2L * self->one + (512 << 10));
        R(poll(&out, 1, 0));
        tell(total);
        await_event(fd, POLLOUT);
        set_blocking(fd, true);
        R(send(fd, "x", 1, 0));
        meet();
        return;
    }
    size_t total = hear();
    char *all = malloc(total);
    line("all arrived: %d", read_all(fd, all, total) == total);
    R(read(fd, taken, 10));
    free(all);
    meet();
}

// A sender that is full chooses a larger buffer: there is room before anybody reads.
static void raised(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        set_buffer(fd, SO_SNDBUF, 8192);
        long total = full(fd);
        struct pollfd out = {fd, POLLOUT, 0};
        R(poll(&out, 1, 0));
        set_buffer(fd, SO_SNDBUF, 262144);
        R(poll(&out, 1, 10000));
        long more = full(fd);
        line("more: %d", more >= 1 << 16);
        tell(total + more);
        meet();
        return;
    }
    size_t total = hear();
    char *all = malloc(total);
    line("all arrived: %d", read_all(fd, all, total) == total);
    free(all);
    meet();
}

static void add_sized(const char *name, void (*run)(const Case *), int kib) {
    char whole[100];
    snprintf(whole, sizeof(whole), "buffers/%s-of-%d-KiB", name, kib);
    add(whole, run, kib, 0);
}

void buffer_cases(void) {
    // Kernel TCP between hosts holds not much more while nobody reads.
    add_sized("write-all-first", write_all_first, 300);
    add_sized("child-takes-all", child_takes_all, 300);
    add_sized("write-all-then-read", write_all_then_read, 256);
    add_sized("write-all-then-read", write_all_then_read, 600);
    add("buffers/room-by-poll", wait_for_room_first, BY_POLL, 300);
    add("buffers/room-by-epoll", wait_for_room_first, BY_EPOLL, 300);
    add("buffers/room-by-edges", wait_for_room_first, BY_EDGES, 300);
    add("buffers/relay-of-one-thread", relay_of_one_thread, 20 << 10, 0);
    add("buffers/sender-of-4096", chosen_sender, 4096, 0);
    add("buffers/sender-of-65536", chosen_sender, 65536, 0);
    add("buffers/sender-of-262144", chosen_sender, 262144, 0);
    add("buffers/raised", raised, 0, 0);
}
