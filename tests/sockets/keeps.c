// What only kernel TCP has: signals for arrivals, errors of a socket, options of the kernel's, kernel AIO, sandboxes. A
// connection that has left TCP is there again when it matters.
#include "body.h"
#include <linux/aio_abi.h>
#include <linux/errqueue.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef TCP_INQ
#define TCP_INQ 36
#endif

static void exchange(int fd, int rounds) {
    int good = 0;
    for (int i = 0; i < rounds; i++) {
        char word[8] = {0};
        if (A == (i % 2 == 0)) good += send(fd, pattern + i, 8, MSG_NOSIGNAL) == 8;
        else good += read_all(fd, word, 8) == 8 && memcmp(word, pattern + i, 8) == 0;
    }
    line("%d of %d words", good, rounds);
}

// ---- signals for arrivals

// `one`: by ioctl. `two`: a signal of the program's choice.
static void signal_for_arrival(const Case *self) {
    int fd = connected(), number = self->two ? SIGUSR2 : SIGIO, on = 1;
    if (B) {
        meet();
        R(send(fd, "x", 1, 0));
        meet();
        exchange(fd, 20);
        return;
    }
    on_signal(number, SA_RESTART);
    R(fcntl(fd, F_SETOWN, getpid()));
    if (self->two) R(fcntl(fd, F_SETSIG, SIGUSR2));
    if (self->one) R(ioctl(fd, FIOASYNC, &on));
    else R(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC));
    line("before: %d", interrupts > 0);
    meet();
    for (int waited = 0; waited < 10000 && !interrupts; waited++) pause_ms(1);
    line("it came: %d", interrupts > 0);
    R(recv(fd, buffer, 1, 0));
    on = 0;
    if (self->one) R(ioctl(fd, FIOASYNC, &on));
    else R(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_ASYNC));
    meet();
    exchange(fd, 20);
}

// ---- the error of a socket

// A peer that closes with bytes unread resets the connection. Who asks for the error takes it.
static void error_is_taken(const Case *self) {
    int fd = connected();
    if (B) {
        await_bytes(fd, 6);
        R(close(fd));
        meet();
        return;
    }
    R(send(fd, "unread", 6, 0));
    meet();
    struct pollfd one = {fd, POLLIN, 0};
    await_event(fd, POLLERR);
    R(poll(&one, 1, 0));
    line("%s", events_name(one.revents));
    int error = -1;
    socklen_t length = sizeof(error);
    if (self->one) {
        R(recv(fd, buffer, 10, 0));
    }
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    line("%s, length %u", errno_name(error), length);
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    line("%s", errno_name(error));
    R(poll(&one, 1, 0));
    line("%s", events_name(one.revents));
    R(recv(fd, buffer, 10, 0));
    R(send(fd, "x", 1, MSG_NOSIGNAL));
}

// ---- options of the kernel's

// Bytes that the kernel sends from the program's memory, of which it tells when it needs them no more.
static void zero_copy(const Case *self) {
    (void)self;
    int fd = connected(), on = 1;
    if (B) {
        line("got %zu", read_all(fd, buffer, 20000));
        hash("received", buffer, 20000);
        meet();
        exchange(fd, 20);
        return;
    }
    R(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)));
    R(send(fd, pattern, 20000, MSG_ZEROCOPY));
    await_event(fd, POLLERR);
    char beside[256];
    struct msghdr message = {.msg_control = beside, .msg_controllen = sizeof(beside)};
    R(recvmsg(fd, &message, MSG_ERRQUEUE));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    struct sock_extended_err *told = head ? (void *)CMSG_DATA(head) : NULL;
    line("told: %d", told && told->ee_origin == SO_EE_ORIGIN_ZEROCOPY && told->ee_info == 0 && told->ee_data == 0);
    meet();
    exchange(fd, 20);
}

static const struct {
    const char *name;
    int level, option, value, length;
} kept[] = {
    {"pacing", SOL_SOCKET, SO_MAX_PACING_RATE, 100000000, 4},
    {"times", SOL_SOCKET, SO_TIMESTAMPNS, 1, 4},
};

// Bytes flow, and never past what the option is about. `two`: on the listener, of which connections have it.
static void option_keeps(const Case *self) {
    int level = kept[self->one].level, option = kept[self->one].option, value = kept[self->one].value, fd;
    if (self->two) {
        int listening = B ? listener() : -1;
        if (B) R(setsockopt(listening, level, option, &value, kept[self->one].length));
        fd = B ? MUST(accept(listening, NULL, NULL)) : dialed(hear());
    } else {
        fd = connected();
        if (B) R(setsockopt(fd, level, option, &value, kept[self->one].length));
    }
    meet();
    for (int i = 0; i < 100; i++) {
        char byte = 'x';
        if (A ? write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1 : read(fd, &byte, 1) != 1 || write(fd, &byte, 1) != 1)
            broken("a byte", "keeps", i);
        if (i == 50) pause_ms(50);
    }
    meet();
    if (B) line("left TCP: %d", has_left_tcp(fd));
    exchange(fd, 20);
}

static void inq_beside_the_bytes(const Case *self) {
    (void)self;
    int fd = connected(), on = 1;
    if (A) {
        meet();
        R(send(fd, pattern, 100, 0));
        meet();
        return;
    }
    R(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &on, sizeof(on)));
    meet();
    await_bytes(fd, 100);
    char beside[256];
    struct iovec part = {buffer, 10};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof(beside)};
    R(recvmsg(fd, &message, 0));
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    line("left: %d", head ? *(int *)CMSG_DATA(head) : -1);
    meet();
}

// Layers of the kernel's above TCP. Most kernels have `tls` as a module, which may be missing; both transcripts say so.
static void upper_layer(const Case *self) {
    int fd = connected();
    char name[16] = {0};
    socklen_t length = sizeof(name);
    if (B) R(setsockopt(fd, IPPROTO_TCP, TCP_ULP, self->one ? "tls" : "no-such", self->one ? 4 : 8));
    if (B) R(getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &length));
    if (B) line("%.15s", name);
    meet();
    exchange(fd, 40);
}

// What the other end's kernel has not taken yet. `one`: nobody reads, so it is much.
static void unsent(const Case *self) {
    int fd = connected(), count = -1;
    if (A && self->one) {
        full(fd);
        R(ioctl(fd, SIOCOUTQ, &count));
        line("unsent: %d", count > 0);
        meet();
        meet();
        return;
    }
    if (A) R(send(fd, pattern, 1000, 0));
    if (B && !self->one) await_bytes(fd, 1000);
    meet();
    if (A) {
        for (int waited = 0; waited < 5000 && (ioctl(fd, SIOCOUTQ, &count) || count); waited++) pause_ms(1);
        line("unsent: %d", count);
    }
    meet();
    if (B) line("got %zu", read_all(fd, buffer, 1000));
}

// ---- kernel AIO

static long submit(aio_context_t context, int what, int fd, void *bytes, size_t count, long *answer) {
    struct iocb one = {.aio_lio_opcode = (uint16_t)what,
                       .aio_fildes = (uint32_t)fd,
                       .aio_buf = what == IOCB_CMD_POLL ? POLLIN : (uintptr_t)bytes,
                       .aio_nbytes = what == IOCB_CMD_POLL ? 0 : count},
                *list = &one;
    if (syscall(SYS_io_submit, context, 1, &list) != 1) return -errno;
    struct io_event event;
    struct timespec limit = {10, 0};
    if (syscall(SYS_io_getevents, context, 1, 1, &event, &limit) != 1) return -ETIME;
    *answer = event.res;
    return 0;
}

// `one`: what B does by AIO.
static void by_aio(const Case *self) {
    int fd = connected();
    aio_context_t context = 0;
    bool may = A || syscall(SYS_io_setup, 8, &context) == 0;
    tell(may);
    if (!hear() || !may) {
        line("the kernel makes no context");
        return;
    }
    for (int i = 0; i < 30; i++) {
        char word[8] = {0};
        long answer = -1, failed = 0;
        if (A) {
            memcpy(word, pattern + i, 8);
            if (send(fd, word, 8, 0) != 8 || read_all(fd, word, 8) != 8) line("%d: no answer", i);
            else if (memcmp(word, pattern + i, 8)) line("%d: another one", i);
            continue;
        }
        if (self->one == IOCB_CMD_POLL && (failed = submit(context, IOCB_CMD_POLL, fd, NULL, 0, &answer)))
            line("%d: %s", i, errno_name((int)-failed));
        if (self->one == IOCB_CMD_PREAD) failed = submit(context, IOCB_CMD_PREAD, fd, word, 8, &answer);
        else answer = (long)read_all(fd, word, 8);
        if (failed || answer != 8) line("%d: read %ld %ld", i, failed, answer);
        if (self->one == IOCB_CMD_PWRITE) failed = submit(context, IOCB_CMD_PWRITE, fd, word, 8, &answer);
        else answer = send(fd, word, 8, 0);
        if (failed || answer != 8) line("%d: wrote %ld %ld", i, failed, answer);
    }
    line("30 words");
    meet();
}

// ---- sandboxes

#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

enum { BY_PRCTL, BY_CALL, FOR_ALL_THREADS, STRICTLY };

// The program's own calls and no others.
static void enter_sandbox(int how) {
    struct sock_filter own[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
                                ALLOW(SYS_read),
                                ALLOW(SYS_write),
                                ALLOW(SYS_close),
                                ALLOW(SYS_exit),
                                ALLOW(SYS_exit_group),
                                ALLOW(SYS_clock_nanosleep),
                                ALLOW(SYS_sendto),
                                ALLOW(SYS_recvfrom),
#ifdef SYS_epoll_wait
                                ALLOW(SYS_epoll_wait),
#else
                                ALLOW(SYS_epoll_pwait),
#endif
                                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)};
    struct sock_fprog program = {COUNT(own), own};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    if (how == STRICTLY) MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    else if (how == BY_PRCTL) MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    else
        MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, how == FOR_ALL_THREADS ? SECCOMP_FILTER_FLAG_TSYNC : 0,
                     &program));
}

// `two`: B has entered too.
static void sandbox(const Case *self) {
    int how = self->one;
    // A child, because its end is a call that a strict sandbox allows and the C library's is not.
    pid_t child = A || self->two ? MUST(fork()) : 0;
    if (child) {
        await_child(child);
        return;
    }
    int fd = connected();
    exchange(fd, 20);
    if (A || self->two) enter_sandbox(how);
    int good = 0;
    for (int i = 0; i < 40; i++) {
        char word[8] = {0};
        if (A == (i % 2 == 0)) good += write(fd, pattern + i, 8) == 8;
        else good += read(fd, word, 8) == 8 && memcmp(word, pattern + i, 8) == 0;
        // Longer than any thread of anybody's sleeps, where all threads are in it.
        if (i == 20 && how == FOR_ALL_THREADS) pause_ms(2500);
    }
    line("%d of 40 words", good);
    if (how != STRICTLY) close(fd);
    if (A || self->two) syscall(how == STRICTLY ? SYS_exit : SYS_exit_group, 0);
}

// A loop over an epoll set that was made before: its entries are as the program made them. `one`: edges.
static void sandbox_and_epoll(const Case *self) {
    int fd = connected();
    if (B) {
        for (int i = 0; i < 10; i++) {
            R(recv(fd, buffer, 8, MSG_WAITALL));
            R(send(fd, pattern + i, 8, 0));
        }
        meet();
        return;
    }
    int set = MUST(epoll_create1(0));
    struct epoll_event event = {EPOLLIN | (self->one ? EPOLLET : 0), {.u64 = 0x1234567890abcdef}};
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    R(epoll_wait(set, &event, 1, 0));
    for (int i = 0; i < 10; i++) {
        if (i == 3) enter_sandbox(FOR_ALL_THREADS);
        R(send(fd, "request!", 8, 0));
        event = (struct epoll_event){0};
        R(epoll_wait(set, &event, 1, 10000));
        line("%s %d", events_name(event.events), event.data.u64 == 0x1234567890abcdef);
        R(recv(fd, buffer, 100, 0));
        hash("received", buffer, 8);
    }
    R(epoll_wait(set, &event, 1, 0));
    meet();
}

// A process that may open nothing more. `one`: not even poll, which takes as many descriptors as a process may have.
static void few_descriptors(const Case *self) {
    int fd = connected(), old = MUST(dup(fd));
    if (B) {
        for (int i = 0; i < 40; i += 2) {
            if (read_all(fd, buffer, 8) != 8) line("%d: no word", i);
            if (i % 10 == 0) pause_ms(20); // the other end sleeps
            MUST(send(fd, pattern + i + 1, 8, 0));
        }
        return;
    }
    exchange(fd, 10);
    struct rlimit limit = {self->one ? 0 : 12, 1000};
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    F(dup(fd));
    for (int i = 10; i < 40; i++) {
        char word[8] = {0};
        if (i % 2 == 0) MUST(send(fd, pattern + i, 8, 0));
        else if (read_all(fd, word, 8) != 8 || memcmp(word, pattern + i, 8)) line("%d: another word", i);
    }
    line("30 words");
    close(old);
}

// A filter that programs ask for without one: nothing has changed.
static void asks_for_filters(const Case *self) {
    (void)self;
    int fd = connected();
    R(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL));
    R(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL));
    R(prctl(PR_GET_SECCOMP));
    R(prctl(12345, 0, 0, 0, 0));
    exchange(fd, 20);
    meet();
}

// ---- the addresses of a connection that was reset

// A client with a port of its own resets its connection and connects again, at once.
static void port_again(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener();
        for (int i = 0; i < 40; i++) {
            int fd = MUST(accept(listening, NULL, NULL));
            ssize_t got;
            while ((got = read(fd, buffer, 100)) > 0)
                if (write(fd, buffer, got) != got) break;
            MUST(close(fd));
        }
        return;
    }
    struct sockaddr_in there = server_address(hear()), own = {.sin_family = AF_INET};
    socklen_t length = sizeof(own);
    int failed = 0, good = 0, on = 1;
    for (int i = 0; i < 40; i++) {
        int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
        MUST(bind(fd, (struct sockaddr *)&own, sizeof(own)));
        int tries = 0;
        while (connect(fd, (struct sockaddr *)&there, sizeof(there)) == -1 && ++tries < 5000) {
            pause_ms(1);
            MUST(close(fd));
            fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
            MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
            MUST(bind(fd, (struct sockaddr *)&own, sizeof(own)));
        }
        failed += tries > 0;
        // The same one from now on.
        if (i == 0) MUST(getsockname(fd, (struct sockaddr *)&own, &length));
        for (int n = 0; n < 20 + i % 30; n++) {
            char byte = 'x';
            good += write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1;
        }
        struct linger at_once = {1, 0};
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
        MUST(close(fd));
    }
    line("%d failed, %d bytes came back", failed, good);
}

// ---- words of others

// A child that has the connection at 0, 1 and 2, as inetd starts programs, and connects by itself.
static void own_words_alone(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        line("got %zu", read_all(fd, buffer, 1000));
        line("%.100s", buffer);
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        for (int to = 0; to < 3; to++) MUST(dup2(fd, to));
        // The root of such a process often has no daemon's socket.
        if (getuid() == 0) MUST(chroot("/proc/self/fdinfo"));
        int other = MUST(socket(AF_INET, SOCK_STREAM, 0)), listening = MUST(socket(AF_INET, SOCK_STREAM, 0));
        struct sockaddr_in there = server_address(0);
        MUST(bind(listening, (struct sockaddr *)&there, sizeof(there)));
        MUST(listen(listening, 1));
        there = server_address(port_of(listening));
        dprintf(1, "hello ");
        MUST(connect(other, (struct sockaddr *)&there, sizeof(there)));
        MUST(write(other, "data", 4));
        dprintf(1, "done");
        _exit(0);
    }
    await_child(child);
    R(close(fd));
}

void keep_cases(void) {
    add("keeps/signal", signal_for_arrival, 0, 0);
    add("keeps/signal-by-ioctl", signal_for_arrival, 1, 0);
    add("keeps/signal-of-choice", signal_for_arrival, 0, 1);
    add("keeps/error-is-taken", error_is_taken, 0, 0);
    add("keeps/error-after-a-read", error_is_taken, 1, 0);
    add("keeps/zero-copy", zero_copy, 0, 0);
    for (int i = 0; i < (int)COUNT(kept); i++)
        for (int listens = 0; listens < 2; listens++) {
            char name[100];
            snprintf(name, sizeof(name), "keeps/%s%s", kept[i].name, listens ? "-of-the-listener" : "");
            add(name, option_keeps, i, listens);
        }
    add("keeps/bytes-in-queue-beside-the-bytes", inq_beside_the_bytes, 0, 0);
    add("keeps/tls-in-the-kernel", upper_layer, 1, 0);
    add("keeps/no-such-layer", upper_layer, 0, 0);
    add("keeps/unsent", unsent, 0, 0);
    add("keeps/unsent-of-much", unsent, 1, 0);
    add("keeps/aio-poll", by_aio, IOCB_CMD_POLL, 0);
    add("keeps/aio-read", by_aio, IOCB_CMD_PREAD, 0);
    add("keeps/aio-write", by_aio, IOCB_CMD_PWRITE, 0);
    static const char *names[] = {"by-prctl", "by-call", "for-all-threads", "strictly"};
    for (int how = 0; how < (int)COUNT(names); how++)
        for (int both = 0; both < 2; both++) {
            char name[100];
            snprintf(name, sizeof(name), "keeps/sandbox-%s%s", names[how], both ? "-at-both-ends" : "");
            add(name, sandbox, how, both);
        }
    add("keeps/sandbox-and-epoll", sandbox_and_epoll, 0, 0);
    add("keeps/sandbox-and-edges", sandbox_and_epoll, 1, 0);
    add("keeps/few-descriptors", few_descriptors, 0, 0);
    add("keeps/no-descriptors", few_descriptors, 1, 0);
    add("keeps/asks-for-filters", asks_for_filters, 0, 0);
    add("keeps/port-again", port_again, 0, 0);
    add("keeps/own-words-alone", own_words_alone, 0, 0);
}
