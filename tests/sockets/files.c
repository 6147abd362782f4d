// Files and pipes to and from connections: sendfile, splice, tee.
#include "body.h"

static void received(int fd, size_t count) {
    memset(buffer, 0, count);
    line("got %zu", read_all(fd, buffer, count));
    hash("received", buffer, count);
}

static void file_with_offset(const Case *self) {
    (void)self;
    int fd = connected();
    if (B) {
        received(fd, 10000 + 2000 + 3000);
        meet();
        return;
    }
    int file = temporary(pattern, 50000);
    off_t offset = 7000;
    R(sendfile(fd, file, &offset, 10000));
    line("offset %ld, place %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    R(sendfile(fd, file, NULL, 2000));
    line("place %ld", (long)lseek(file, 0, SEEK_CUR));
    offset = 47000;
    R(sendfile(fd, file, &offset, 9000)); // up to the end of the file
    R(sendfile(fd, file, &offset, 9000));
    R(sendfile(fd, file, &offset, 0));
    offset = -1;
    R(sendfile(fd, file, &offset, 10));
    meet();
}

static void file_that_is_none(const Case *self) {
    (void)self;
    int fd = connected(), pipes[2];
    off_t offset = 0;
    MUST(pipe(pipes));
    MUST(write(pipes[1], "piped", 5));
    R(sendfile(fd, pipes[0], &offset, 5));
    R(sendfile(fd, -1, NULL, 5));
    R(sendfile(fd, fd, NULL, 5));
    R(sendfile(-1, temporary("x", 1), NULL, 1));
    R(sendfile(temporary("", 0), temporary("from file to file", 17), NULL, 17));
    meet();
}

static void file_of_8_mib(const Case *self) {
    (void)self;
    int fd = connected();
    enum { PARTS = 8 };
    if (A) {
        int file = temporary(pattern, sizeof(pattern));
        for (int i = 1; i < PARTS; i++) MUST(write(file, pattern, 0) + lseek(file, 0, SEEK_END) + write(file, pattern, sizeof(pattern)));
        off_t offset = 0;
        while (offset < (off_t)(PARTS * sizeof(pattern)) && sendfile(fd, file, &offset, PARTS * sizeof(pattern)) > 0) {}
        line("offset %ld", (long)offset);
        R(close(fd));
        return;
    }
    for (int i = 0; i < PARTS; i++) received(fd, sizeof(pattern));
    R(recv(fd, buffer, 1, 0));
}

static void file_nonblocking(const Case *self) {
    (void)self;
    int fd = connected();
    enum { PARTS = 4 };
    if (A) {
        set_blocking(fd, false);
        int file = temporary(pattern, sizeof(pattern)), waits = 0;
        for (int part = 0; part < PARTS; part++) {
            off_t offset = 0;
            while (offset < (off_t)sizeof(pattern)) {
                if (sendfile(fd, file, &offset, sizeof(pattern) - offset) > 0) continue;
                if (errno != EAGAIN) broken("sendfile", __FILE__, __LINE__);
                struct pollfd one = {fd, POLLOUT, 0};
                waits++;
                if (poll(&one, 1, 10000) != 1) broken("poll", __FILE__, __LINE__);
            }
        }
        line("all sent");
        R(shutdown(fd, SHUT_WR));
        R(recv(fd, buffer, 1, 0) >= -1);
        meet();
        return;
    }
    for (int i = 0; i < PARTS; i++) received(fd, sizeof(pattern));
    meet();
}

static void pipe_to_it_and_back(const Case *self) {
    (void)self;
    int fd = connected(), pipes[2];
    MUST(pipe(pipes));
    if (A) {
        MUST(write(pipes[1], pattern, 20000));
        R(splice(pipes[0], NULL, fd, NULL, 5000, SPLICE_F_MORE));
        R(splice(pipes[0], NULL, fd, NULL, 15000, SPLICE_F_MOVE));
        R(splice(pipes[0], NULL, fd, NULL, 100, SPLICE_F_NONBLOCK));
        off_t offset = 0;
        R(splice(pipes[0], NULL, fd, &offset, 100, 0));
        R(splice(fd, NULL, temporary("x", 1), NULL, 100, 0));
        R(splice(fd, NULL, fd, NULL, 100, 0));
        meet();
        return;
    }
    await_bytes(fd, 20000);
    size_t moved = 0;
    for (ssize_t now; moved < 20000 && (now = splice(fd, NULL, pipes[1], NULL, 20000 - moved, 0)) > 0; moved += now) {}
    line("moved %zu", moved);
    received(pipes[0], 20000);
    set_blocking(fd, false);
    R(splice(fd, NULL, pipes[1], NULL, 100, SPLICE_F_NONBLOCK));
    meet();
}

// As a proxy moves bytes: from one connection through a pipe to another.
static void proxy(const Case *self) {
    (void)self;
    int first, second, pipes[2];
    connected_two(&first, &second);
    if (A) {
        line("sent %zu", send_all(first, pattern, 60000));
        R(shutdown(first, SHUT_WR));
        received(second, 60000);
        R(recv(second, buffer, 1, 0));
        return;
    }
    MUST(pipe(pipes));
    size_t total = 0;
    for (ssize_t now; (now = splice(first, NULL, pipes[1], NULL, 30000, SPLICE_F_MOVE | SPLICE_F_MORE)) > 0;)
        for (ssize_t out; now > 0 && (out = splice(pipes[0], NULL, second, NULL, now, SPLICE_F_MOVE)) > 0; now -= out)
            total += out;
    line("moved %zu", total);
    R(close(second));
}

static void splice_at_the_end(const Case *self) {
    (void)self;
    int fd = connected(), pipes[2];
    MUST(pipe(pipes));
    if (A) {
        R(send(fd, "tail", 4, 0));
        R(shutdown(fd, SHUT_WR));
        meet();
        return;
    }
    await_event(fd, POLLRDHUP);
    R(splice(fd, NULL, pipes[1], NULL, 100, 0));
    R(splice(fd, NULL, pipes[1], NULL, 100, 0));
    meet();
}

static void wait_in_splice(const Case *self) {
    (void)self;
    int fd = connected(), pipes[2];
    MUST(pipe(pipes));
    meet();
    if (A) {
        pause_ms(50);
        R(send(fd, "late", 4, 0));
        meet();
        return;
    }
    R(splice(fd, NULL, pipes[1], NULL, 100, 0));
    received(pipes[0], 4);
    meet();
}

static void copy_between(const Case *self) {
    (void)self;
    int fd = connected(), file = temporary("bytes", 5);
    R(copy_file_range(file, NULL, fd, NULL, 5, 0));
    R(copy_file_range(fd, NULL, file, NULL, 5, 0));
    meet();
}

void file_cases(void) {
    add("file/with-offset", file_with_offset, 0, 0);
    add("file/that-is-none", file_that_is_none, 0, 0);
    add("file/of-8-mib", file_of_8_mib, 0, 0);
    add("file/nonblocking", file_nonblocking, 0, 0);
    add("file/pipe-to-it-and-back", pipe_to_it_and_back, 0, 0);
    add("file/proxy", proxy, 0, 0);
    add("file/splice-at-the-end", splice_at_the_end, 0, 0);
    add("file/wait-in-splice", wait_in_splice, 0, 0);
    add("file/copy-between", copy_between, 0, 0);
}
