// A connection's descriptor is a kernel descriptor: duplicates, flags, requests of ioctl, what it cannot do.
#include "body.h"
#include <linux/close_range.h>
#include <linux/sockios.h>

// Sends a word over `fd` and reads it at the other side.
static void word(int fd, bool sends) {
    if (sends) {
        R(send(fd, "word", 4, 0));
        meet();
        return;
    }
    meet();
    await_bytes(fd, 4);
    R(recv(fd, buffer, 4, 0));
}

static int duplicate(int way, int fd) {
    switch (way) {
    case 0: return dup(fd);
    case 1: return dup2(fd, 300);
    case 2: return dup3(fd, 301, O_CLOEXEC);
    case 3: return fcntl(fd, F_DUPFD, 310);
    default: return fcntl(fd, F_DUPFD_CLOEXEC, 320);
    }
}

static void duplicates(const Case *self) {
    int fd = connected(), copy = F(duplicate(self->one, fd));
    line("close-on-exec %d", fcntl(copy, F_GETFD) & FD_CLOEXEC);
    word(copy, A);
    word(fd, B);
    R(close(fd));
    word(copy, B); // the connection lives
    word(copy, A);
    set_blocking(copy, false);
    R(recv(copy, buffer, 1, 0));
    meet();
    R(close(copy));
    meet();
}

static void shared_flags(const Case *self) {
    (void)self;
    int fd = connected(), copy = F(dup(fd));
    R(fcntl(copy, F_SETFL, O_NONBLOCK | O_RDWR));
    line("the other one has it: %d", !!(fcntl(fd, F_GETFL) & O_NONBLOCK));
    R(recv(fd, buffer, 1, 0));
    int off = 0, on = 1;
    R(ioctl(fd, FIONBIO, &off));
    line("the other one has it: %d", !!(fcntl(copy, F_GETFL) & O_NONBLOCK));
    R(ioctl(copy, FIONBIO, &on));
    R(recv(fd, buffer, 1, 0));
    R(fcntl(fd, F_SETFD, FD_CLOEXEC));
    line("close-on-exec of the copy %d", fcntl(copy, F_GETFD));
    R(ioctl(copy, FIOCLEX));
    line("close-on-exec of the copy %d", fcntl(copy, F_GETFD));
    R(ioctl(copy, FIONCLEX));
    line("close-on-exec of the copy %d", fcntl(copy, F_GETFD));
    meet();
}

static void over_another(const Case *self) {
    (void)self;
    int first, second;
    connected_two(&first, &second);
    if (A) {
        R(dup2(first, second) == second); // ends the second connection
        R(dup2(first, first) == first);
        R(dup3(first, first, 0));
        word(second, true);
        word(first, false);
        meet();
        return;
    }
    R(recv(second, buffer, 1, 0));
    word(first, false);
    word(first, true);
    meet();
}

static void file_over_a_connection(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        int file = temporary("from the file", 13);
        R(dup2(file, fd) == fd);
        R(read(fd, buffer, 100));
        R(send(fd, "x", 1, 0));
    } else {
        R(recv(fd, buffer, 1, 0));
    }
    meet();
}

static void last_copy_ends(const Case *self) {
    (void)self;
    int fd = connected(), copy = F(dup(fd));
    if (A) {
        R(close(copy));
        word(fd, true);
        R(close(fd));
    } else {
        word(fd, false);
        R(recv(fd, buffer, 1, 0));
    }
    R(close(fd));
    meet();
}

static void ranges(const Case *self) {
    int first, second;
    connected_two(&first, &second);
    if (A && self->one == 2) {
        // Above the numbers that the transcript and the pipes have.
        MUST(dup2(first, 950));
        MUST(dup2(second, 951));
        MUST(close(first));
        MUST(close(second));
        first = 950;
        second = 951;
    }
    int low = first < second ? first : second, high = first < second ? second : first;
    if (A) {
        if (self->one == 0) R(close_range(low, high, 0));
        if (self->one == 1) R(close_range(low, high, CLOSE_RANGE_CLOEXEC));
        if (self->one == 2) closefrom(low);
        if (self->one == 1) line("close-on-exec %d %d", fcntl(first, F_GETFD), fcntl(second, F_GETFD));
        R(send(first, "x", 1, MSG_NOSIGNAL));
        if (self->one == 1) {
            close(first);
            close(second);
        }
        return;
    }
    R(recv(first, buffer, 1, 0));
    R(recv(second, buffer, 1, 0));
}

static void number_again(const Case *self) {
    (void)self;
    int first, second;
    if (A) {
        int port = hear();
        first = dialed(port);
        R(send(first, "first", 5, 0));
        R(close(first));
        second = dialed(port);
        line("the number is used again: %d", second == first);
        R(recv(second, buffer, 10, 0));
        R(close(second));
        R(close(second));
        int file = temporary("file", 4);
        line("and again by a file: %d", file == first);
        R(read(file, buffer, 10));
        R(send(file, "x", 1, 0));
        return;
    }
    int listening = listener();
    first = F(accept(listening, NULL, NULL));
    second = F(accept(listening, NULL, NULL));
    R(send(second, "second", 6, 0));
    R(recv(first, buffer, 10, 0));
    R(recv(first, buffer, 10, 0));
    R(recv(second, buffer, 10, 0));
}

// Descriptors are the lowest numbers that are free.
static void lowest(const Case *self) {
    (void)self;
    close(0);
    int fd = connected();
    line("standard input's number: %d", fd == 0);
    word(fd, A);
    word(fd, B);
    int next = dup(fd), third = dup(fd);
    line("in order: %d", third > next && next > 2);
    meet();
}

static int unread(int fd) {
    int count = -7;
    R(ioctl(fd, FIONREAD, &count));
    return count;
}

static void requests(const Case *self) {
    (void)self;
    int fd = connected();
    line("unread %d", unread(fd));
    meet();
    if (A) {
        R(send(fd, pattern, 500, 0));
        meet();
        meet();
        int queued = -1;
        // Acknowledged at last.
        for (int i = 0; i < 5000 && queued; i++) {
            if (ioctl(fd, SIOCOUTQ, &queued) == -1) break;
            pause_ms(1);
        }
        line("not acknowledged: %d", queued);
        return;
    }
    meet();
    await_bytes(fd, 500);
    line("unread %d", unread(fd));
    R(recv(fd, buffer, 200, 0));
    line("unread %d", unread(fd));
    R(recv(fd, buffer, 300, 0));
    line("unread %d", unread(fd));
    int listening = listener_with(0, 1), mark = -1;
    R(ioctl(listening, FIONREAD, &mark));
    R(ioctl(fd, SIOCATMARK, &mark));
    line("at the mark %d", mark);
    R(ioctl(fd, TCGETS, buffer));
    R(ioctl(fd, 0x12345, buffer));
    meet();
}

static void unread_at_the_end(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(send(fd, "abc", 3, 0));
        R(shutdown(fd, SHUT_WR));
        meet();
        return;
    }
    await_event(fd, POLLRDHUP);
    line("unread %d", unread(fd));
    R(recv(fd, buffer, 10, 0));
    line("unread %d", unread(fd));
    meet();
}

static void what_it_cannot(const Case *self) {
    (void)self;
    int fd = connected();
    struct stat about;
    R(fstat(fd, &about));
    line("a socket: %d", S_ISSOCK(about.st_mode));
    R(lseek(fd, 0, SEEK_CUR));
    R(pread(fd, buffer, 1, 0));
    R(pwrite(fd, "x", 1, 0));
    R(ftruncate(fd, 0));
    R(fsync(fd));
    R(isatty(fd));
    struct iovec one = {buffer, 1};
    R(preadv(fd, &one, 1, 0));
    char path[64], target[64] = {0};
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    R(readlink(path, target, 7));
    line("%s", target);
    R(open(path, O_RDWR));
    word(fd, A);
    meet();
}

static void flags_of_the_file(const Case *self) {
    (void)self;
    int fd = connected();
    line("flags %x", fcntl(fd, F_GETFL));
    R(fcntl(fd, F_SETFL, O_APPEND));
    line("flags %x", fcntl(fd, F_GETFL));
    R(fcntl(fd, F_SETFL, 0));
    R(fcntl(fd, F_GETOWN));
    R(fcntl(fd, F_SETOWN, getpid()));
    line("own %d", fcntl(fd, F_GETOWN) == getpid());
    R(fcntl(fd, 9999));
    R(fcntl(-1, F_GETFL));
    meet();
}

// The C library's own streams.
static void streams(const Case *self) {
    (void)self;
    int fd = connected();
    FILE *stream = fdopen(fd, "r+");
    char text[100] = {0};
    if (A) {
        line("printed %d", fprintf(stream, "GET %s\n", "/index"));
        R(fflush(stream));
        line("got %d", fgets(text, sizeof(text), stream) != NULL);
        line("line %s", text);
        R(fclose(stream));
        return;
    }
    line("got %d", fgets(text, sizeof(text), stream) != NULL);
    line("line %s", text);
    fseek(stream, 0, SEEK_CUR);
    R(fputs("200 well\n", stream) >= 0);
    R(fflush(stream));
    R(fgetc(stream));
    R(feof(stream) != 0);
    R(fclose(stream));
}

static void dprintf_to_it(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) R(dprintf(fd, "%d words\n", 3));
    if (B) R(recv(fd, buffer, 8, MSG_WAITALL));
    if (B) hash("received", buffer, 8);
    meet();
}

// Without the C library's functions.
static void plain_system_calls(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(syscall(SYS_write, fd, "raw", 3));
        R(send(fd, "cooked", 6, 0));
        meet();
        R(syscall(SYS_read, fd, buffer, 100));
        return;
    }
    await_bytes(fd, 9);
    R(recv(fd, buffer, 100, 0));
    hash("received", buffer, 9);
    R(send(fd, "back", 4, 0));
    meet();
}

void descriptor_cases(void) {
    static const char *ways[] = {"dup", "dup2", "dup3", "dupfd", "dupfd-cloexec"};
    for (int i = 0; i < 5; i++) {
        char name[100];
        snprintf(name, sizeof(name), "descriptor/%s", ways[i]);
        add(name, duplicates, i, 0);
    }
    add("descriptor/shared-flags", shared_flags, 0, 0);
    add("descriptor/over-another", over_another, 0, 0);
    add("descriptor/file-over-a-connection", file_over_a_connection, 0, 0);
    add("descriptor/last-copy-ends", last_copy_ends, 0, 0);
    add("descriptor/close-range", ranges, 0, 0);
    add("descriptor/close-range-cloexec", ranges, 1, 0);
    add("descriptor/closefrom", ranges, 2, 0);
    add("descriptor/number-again", number_again, 0, 0);
    add("descriptor/lowest", lowest, 0, 0);
    add("descriptor/requests", requests, 0, 0);
    add("descriptor/unread-at-the-end", unread_at_the_end, 0, 0);
    add("descriptor/what-it-cannot", what_it_cannot, 0, 0);
    add("descriptor/flags-of-the-file", flags_of_the_file, 0, 0);
    add("descriptor/streams", streams, 0, 0);
    add("descriptor/dprintf", dprintf_to_it, 0, 0);
    add("descriptor/plain-system-calls", plain_system_calls, 0, 0);
}
