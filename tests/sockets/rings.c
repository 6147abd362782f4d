// Programs that read and write by io_uring, whose calls no library sees. The ring is made by system calls, as some
// runtimes do.
#include "body.h"
#include <linux/io_uring.h>
#include <sys/mman.h>

typedef struct Ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *answers;
} Ring;

static void *mapped(int fd, size_t length, off_t what) {
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, what);
    return at == MAP_FAILED ? (void *)MUST(-1) : at;
}

// False: the kernel makes none for this user, which is the same under `raas run`.
static bool has_ring(Ring *ring) {
    struct io_uring_params given = {0};
    ring->fd = (int)syscall(SYS_io_uring_setup, 4, &given);
    if (ring->fd == -1) {
        line("the kernel makes no ring: %s", errno_name(errno));
        return false;
    }
    char *sq = mapped(ring->fd, given.sq_off.array + given.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    size_t length = given.cq_off.cqes + given.cq_entries * sizeof(struct io_uring_cqe);
    char *cq = mapped(ring->fd, length, IORING_OFF_CQ_RING);
    ring->entries = mapped(ring->fd, given.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring->sq_tail = (unsigned *)(sq + given.sq_off.tail);
    ring->sq_mask = (unsigned *)(sq + given.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(sq + given.sq_off.array);
    ring->cq_head = (unsigned *)(cq + given.cq_off.head);
    ring->cq_tail = (unsigned *)(cq + given.cq_off.tail);
    ring->cq_mask = (unsigned *)(cq + given.cq_off.ring_mask);
    ring->answers = (struct io_uring_cqe *)(cq + given.cq_off.cqes);
    return true;
}

// One operation, waited for.
static int by_ring(Ring *ring, int what, int fd, void *bytes, unsigned length) {
    unsigned at = *ring->sq_tail & *ring->sq_mask;
    ring->entries[at] = (struct io_uring_sqe){
        .opcode = (uint8_t)what, .fd = fd, .addr = (uintptr_t)bytes, .len = length, .msg_flags = MSG_NOSIGNAL};
    ring->sq_array[at] = at;
    __atomic_store_n(ring->sq_tail, *ring->sq_tail + 1, __ATOMIC_RELEASE);
    MUST(syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    unsigned head = *ring->cq_head;
    if (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) return -ENODATA;
    int result = ring->answers[head & *ring->cq_mask].res;
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

// Whoever has a ring uses it, and the other side calls. `one` is 1: B alone has one; 3: both.
static void exchange(const Case *self) {
    int fd = connected();
    Ring ring;
    bool has = B || self->one == 3, may = !has || has_ring(&ring);
    tell(may);
    if (!hear() || !may) return;
    for (int i = 0; i < 30; i++) {
        char word[8] = {0};
        if (A == (i % 2 == 0)) {
            memcpy(word, pattern + i, 8);
            int sent = has ? by_ring(&ring, IORING_OP_SEND, fd, word, 8) : (int)send(fd, word, 8, MSG_NOSIGNAL);
            if (sent != 8) line("%d: sent %d", i, sent);
        } else {
            int got = has ? by_ring(&ring, IORING_OP_RECV, fd, word, 8) : (int)recv(fd, word, 8, 0);
            if (got != 8 || memcmp(word, pattern + i, 8) != 0) line("%d: got %d", i, got);
        }
    }
    line("30 words");
    meet();
}

// What had come before the ring was made.
static void unread(const Case *self) {
    (void)self;
    int fd = connected();
    Ring ring;
    if (A) {
        R(send(fd, pattern, 100, 0));
        meet();
        meet();
        return;
    }
    meet();
    await_bytes(fd, 100);
    memset(buffer, 0, 100);
    if (has_ring(&ring)) line("by the ring: %d", by_ring(&ring, IORING_OP_RECV, fd, buffer, 1000));
    hash("received", buffer, 100);
    meet();
}

// A connection that is made when the ring is there, and which calls use at first.
static void later(const Case *self) {
    (void)self;
    Ring ring;
    bool has = B && has_ring(&ring);
    int fd;
    if (A) {
        fd = dialed(hear());
    } else {
        int listening = listener();
        fd = MUST(accept(listening, NULL, NULL));
    }
    for (int i = 0; i < 50; i++) {
        char byte = (char)i;
        if (A) MUST(write(fd, &byte, 1));
        if (MUST(read(fd, &byte, 1)) != 1 || byte != (char)i) line("%d: another byte", i);
        if (B) MUST(write(fd, &byte, 1));
        pause_ms(1);
    }
    if (A) R(send(fd, "last", 4, 0));
    if (has) line("by the ring: %d", by_ring(&ring, IORING_OP_RECV, fd, buffer, 100));
    meet();
}

void ring_cases(void) {
    add("ring/of-the-server", exchange, 1, 0);
    add("ring/of-both", exchange, 3, 0);
    add("ring/unread-bytes", unread, 0, 0);
    add("ring/later-connection", later, 0, 0);
}
