// Event loops that are told edges: a call that moved fewer bytes than asked for says that there are no more, or no more
// room, and the next edge is waited for without another try.
#include "transfer.h"
#include <sys/eventfd.h>
#include <sys/mman.h>

typedef struct Loop {
    int fd, set;
    bool may_read, may_write;
    const Sender *by;
} Loop;

// `by`: how it sends; none: it only reads.
static Loop loop_of(int fd, const Sender *by) {
    set_blocking(fd, false);
    struct epoll_event one = {EPOLLIN | EPOLLRDHUP | EPOLLET | (by ? EPOLLOUT : 0), {.fd = fd}};
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &one));
    return (Loop){fd, set, false, false, by};
}

// False: no edge comes.
static bool loop_waits(Loop *loop, int ms) {
    struct epoll_event got;
    if (epoll_wait(loop->set, &got, 1, ms) != 1) return false;
    loop->may_read |= (got.events & (EPOLLIN | EPOLLRDHUP | EPOLLERR)) != 0;
    loop->may_write |= (got.events & (EPOLLOUT | EPOLLERR)) != 0;
    return true;
}

// So that the answer finds the other side looking, about to sleep, and asleep.
static void think(int us) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < us);
}

// Whether all bytes came. `most`: so many are asked for at a time, also if fewer are to come; 0: what is left. `us`:
// what the program does with each part takes so long.
static bool loop_reads(Loop *loop, char *into, size_t count, size_t most, int us) {
    for (size_t done = 0; done < count;) {
        while (!loop->may_read)
            if (!loop_waits(loop, 10000)) return false;
        size_t asked = most > 0 ? most : count - done;
        ssize_t now = read(loop->fd, into + done, asked);
        if (now == 0 || (now < 0 && errno != EAGAIN)) return false;
        if (now > 0) done += (size_t)now;
        if (now < (ssize_t)asked) loop->may_read = false;
        think(us);
    }
    return true;
}

// Whether all bytes left.
static bool loop_writes(Loop *loop, const char *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        while (!loop->may_write)
            if (!loop_waits(loop, 10000)) return false;
        size_t asked = count - done;
        ssize_t now = loop->by->send(loop->fd, bytes + done, asked);
        if (now == 0 || (now < 0 && errno != EAGAIN)) return false;
        if (now > 0) done += (size_t)now;
        if (now < (ssize_t)asked) loop->may_write = false;
    }
    return true;
}

// Requests and answers of `one` bytes.
static void requests(const Case *self) {
    size_t size = (size_t)self->one;
    Loop loop = loop_of(connected(), &senders[0]);
    int done = 0;
    for (; done < self->two; done++) {
        if (A && !loop_writes(&loop, pattern + done, size)) break;
        if (!loop_reads(&loop, buffer, size, sizeof(buffer) / 2, 0)) break;
        if (memcmp(buffer, pattern + done, size) != 0) break;
        if (B) think(done % 128);
        if (B && !loop_writes(&loop, pattern + done, size)) break;
    }
    line("%d of %d", done, self->two);
    meet();
}

// Blocks that fit nowhere at once, to a reader that pauses at times.
static void blocks(const Case *self) {
    Loop loop = loop_of(connected(), &senders[0]);
    bool is_whole = true;
    for (int i = 0; i < self->one && is_whole; i++) {
        memset(buffer, 0, sizeof(buffer));
        is_whole = A ? loop_writes(&loop, pattern, sizeof(pattern) / 2)
                     : loop_reads(&loop, buffer, sizeof(pattern) / 2, 0, 0);
        if (B) is_whole &= memcmp(buffer, pattern, sizeof(pattern) / 2) == 0;
        if (B && i % 8 == 0) pause_ms(2);
    }
    line("all: %d", is_whole);
    meet();
}

// ---- room

static atomic_bool is_full;

// Waits until it is told of room behind the moment at which none was left.
static void *awaits_room(void *of) {
    Loop *loop = of;
    do {
        loop->may_write = false;
        while (!loop->may_write)
            if (!loop_waits(loop, 10000)) return NULL;
    } while (!is_full);
    return loop;
}

// Sends until nothing fits any more, without a wait for room. The number of bytes.
static long fill(Loop *loop) {
    long total = 0;
    for (int quiet = 0; quiet < 12;) {
        ssize_t now = loop->by->send(loop->fd, pattern, 65536);
        if (now > 0) {
            total += now;
            quiet = 0;
            continue;
        }
        if (errno != EAGAIN) broken("a call that fills", __FILE__, __LINE__);
        quiet++;
        pause_ms(50); // as `full`
    }
    return total;
}

// The connection was asked for room while it had some, and many waits ended for something else before it has none.
static void room_after_many_waits(const Case *self) {
    Loop loop = loop_of(connected(), &senders[self->one]);
    if (A) {
        meet();
        for (long left = hear(); left > 0;) {
            size_t part = left < (long)sizeof(buffer) ? (size_t)left : sizeof(buffer);
            if (!loop_reads(&loop, buffer, part, 0, 0)) break;
            left -= (long)part;
        }
        meet();
        return;
    }
    meet();
    int other = MUST(eventfd(0, EFD_NONBLOCK));
    struct epoll_event event = {EPOLLIN, {.fd = other}};
    MUST(epoll_ctl(loop.set, EPOLL_CTL_ADD, other, &event));
    while (loop_waits(&loop, 50)) {}
    for (int i = 0; i < 100; i++) {
        MUST(write(other, &(uint64_t){1}, 8));
        do MUST(epoll_wait(loop.set, &event, 1, 10000));
        while (event.data.fd != other);
        MUST(read(other, &(uint64_t){0}, 8));
    }
    pthread_t thread;
    if (self->two) pthread_create(&thread, NULL, awaits_room, &loop);
    if (self->two) pause_ms(50);
    long total = fill(&loop);
    is_full = true;
    tell(total);
    void *found;
    if (self->two) pthread_join(thread, &found);
    else found = awaits_room(&loop);
    line("told of room: %d", found != NULL);
    meet();
}

// A side that found something wrong has the other one find an end.
static bool ends_round(int fd, bool is_whole) {
    if (!is_whole) shutdown(fd, SHUT_RDWR);
    tell(is_whole);
    is_whole &= hear() != 0;
    close(fd);
    return is_whole;
}

// Much is written at once, at each moment of the time in which a connection leaves TCP. The other side makes no call
// meanwhile.
static void while_it_leaves(const Case *self) {
    enum { ROUNDS = 20, PARTS = 4 };
    int listening = B ? listener() : -1, port = A ? hear() : 0, done = 0;
    for (; done < ROUNDS; done++) {
        int fd = A ? dialed(port) : MUST(accept(listening, NULL, NULL)), asked = done + 1;
        bool is_whole = true;
        if (A) {
            for (int i = 0; i < asked; i++) {
                is_whole &= send(fd, "x", 1, 0) == 1;
                think(300);
            }
            pause_ms(30);
            for (int part = 0; part < PARTS && is_whole; part++) {
                is_whole = read_all(fd, buffer, sizeof(buffer)) == sizeof(buffer);
                is_whole &= memcmp(buffer, pattern, sizeof(buffer)) == 0;
            }
        } else {
            Loop loop = loop_of(fd, &senders[self->one]);
            is_whole = loop_reads(&loop, buffer, (size_t)asked, sizeof(buffer), 0);
            while (loop_waits(&loop, 3)) {}
            for (int part = 0; part < PARTS && is_whole; part++) is_whole = loop_writes(&loop, pattern, sizeof(pattern));
            close(loop.set);
        }
        if (!ends_round(fd, is_whole)) break;
    }
    line("%d of %d", done, ROUNDS);
}

// The other side takes its connection back to TCP while this one reads.
static void while_it_returns(const Case *self) {
    (void)self;
    enum { ROUNDS = 20, BYTES = 300000 };
    int listening = B ? listener() : -1, port = A ? hear() : 0, done = 0;
    for (; done < ROUNDS; done++) {
        int fd = A ? dialed(port) : MUST(accept(listening, NULL, NULL));
        bool is_whole = true;
        warm(fd);
        pause_ms(30);
        meet();
        if (A) {
            is_whole = send_all(fd, pattern, BYTES - 1) == BYTES - 1;
            // A kind of send that the kernel alone has.
            is_whole &= send(fd, pattern + BYTES - 1, 1, MSG_ZEROCOPY) == 1;
        } else {
            Loop loop = loop_of(fd, NULL);
            is_whole = loop_reads(&loop, buffer, BYTES, 512, 50) && memcmp(buffer, pattern, BYTES) == 0;
            close(loop.set);
        }
        if (!ends_round(fd, is_whole)) break;
    }
    line("%d of %d", done, ROUNDS);
}

// TCP alone ends, at each moment of the time in which a connection leaves TCP: the other process stands still, and so says
// nothing on the stream before it ends. What is told to be readable is.
static void tcp_ends_while_it_leaves(const Case *self) {
    enum { ROUNDS = 40 };
    int listening = B ? listener() : -1, port = A ? hear() : 0, told_in_vain = 0;
    int *number = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int round = 0; round < ROUNDS; round++) {
        meet();
        if (A) {
            pid_t child = MUST(fork());
            if (child == 0) {
                int fd = *number = dialed(port);
                for (int i = 0; i <= round && send(fd, "x", 1, 0) == 1; i++) think(300);
                raise(SIGSTOP);
            }
            MUST(waitpid(child, NULL, WUNTRACED));
            int handle = MUST(syscall(SYS_pidfd_open, child, 0)), copy = MUST(syscall(SYS_pidfd_getfd, handle, *number, 0));
            MUST(shutdown(copy, SHUT_WR));
            pause_ms(10);
            MUST(kill(child, SIGKILL));
            MUST(waitpid(child, NULL, 0));
            close(copy);
            close(handle);
            continue;
        }
        int fd = MUST(accept(listening, NULL, NULL)), set = MUST(epoll_create1(0));
        struct epoll_event asked = {EPOLLIN, {.fd = fd}}, told;
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &asked));
        set_blocking(fd, false);
        for (ssize_t now = 1; now > 0 || (now < 0 && errno == EAGAIN);) {
            struct pollfd one = {fd, POLLIN, 0};
            int count = self->one ? epoll_wait(set, &told, 1, 10000) : poll(&one, 1, 10000);
            if (count != 1) broken("a wait for the end", __FILE__, __LINE__);
            now = read(fd, buffer, sizeof(buffer));
            told_in_vain += now < 0 && errno == EAGAIN;
        }
        close(set);
        close(fd);
    }
    line("told %d times in vain", told_in_vain);
}

void edge_cases(void) {
    add("edges/requests-64", requests, 64, 3000);
    add("edges/requests-8192", requests, 8192, 1000);
    add("edges/blocks", blocks, 60, 0);
    add_senders("edges/room-after-many-waits", room_after_many_waits);
    add("edges/room-for-another-thread", room_after_many_waits, 0, 1);
    add_senders("edges/while-it-leaves", while_it_leaves);
    add("edges/while-it-returns", while_it_returns, 0, 0);
    add("edges/tcp-ends-while-it-leaves-poll", tcp_ends_while_it_leaves, 0, 0);
    add("edges/tcp-ends-while-it-leaves-epoll", tcp_ends_while_it_leaves, 1, 0);
}
