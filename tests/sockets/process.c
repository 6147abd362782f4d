// Processes: fork with connections, servers that fork before and after they accept, exec, spawn, passed descriptors.
#include "body.h"
#include <spawn.h>

extern char **environ;

static void echo_until_the_end(int fd) {
    ssize_t got;
    while ((got = read(fd, buffer, 1000)) > 0) send_all(fd, buffer, got);
}

// A asks over a connection for an echo of `count` bytes, and for the end.
static void ask(int fd, size_t count) {
    line("sent %zu", send_all(fd, pattern, count));
    R(shutdown(fd, SHUT_WR));
    line("got %zu", read_all(fd, buffer, sizeof(buffer)));
    hash("received", buffer, count);
}

static void forking_server(const Case *self) {
    (void)self;
    if (A) {
        int port = hear(), fds[3];
        for (int i = 0; i < 3; i++) fds[i] = dialed(port);
        for (int i = 2; i >= 0; i--) ask(fds[i], 5000);
        return;
    }
    int listening = listener();
    pid_t children[3];
    for (int i = 0; i < 3; i++) {
        int fd = F(accept(listening, NULL, NULL));
        children[i] = MUST(fork());
        if (children[i] == 0) {
            close(listening);
            echo_until_the_end(fd);
            _exit(0);
        }
        R(close(fd));
    }
    for (int i = 0; i < 3; i++) await_child(children[i]);
}

static void preforked_server(const Case *self) {
    (void)self;
    if (A) {
        int port = hear();
        for (int i = 0; i < 8; i++) {
            int fd = dialed(port);
            ask(fd, 2000);
            R(close(fd));
        }
        meet();
        return;
    }
    int listening = listener();
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = MUST(fork());
        for (int fd; children[i] == 0 && (fd = accept(listening, NULL, NULL)) >= 0; close(fd)) echo_until_the_end(fd);
        if (children[i] == 0) _exit(9);
    }
    R(close(listening));
    meet();
    for (int i = 0; i < 2; i++) {
        kill(children[i], SIGTERM);
        await_child(children[i]);
    }
}

// Workers with a set of their own on an inherited listening socket, as nginx has them.
static void workers_with_epoll(const Case *self) {
    (void)self;
    if (A) {
        int port = hear();
        for (int i = 0; i < 8; i++) {
            int fd = dialed(port);
            ask(fd, 2000);
            R(close(fd));
        }
        meet();
        return;
    }
    int listening = listener_with(SOCK_NONBLOCK, 16);
    pid_t children[2];
    for (int i = 0; i < 2; i++) {
        children[i] = MUST(fork());
        if (children[i]) continue;
        int set = epoll_create1(0);
        struct epoll_event one = {EPOLLIN, {.fd = listening}}, got;
        epoll_ctl(set, EPOLL_CTL_ADD, listening, &one);
        while (epoll_wait(set, &got, 1, 10000) == 1) {
            int fd = accept4(listening, NULL, NULL, 0);
            if (fd < 0) continue;
            echo_until_the_end(fd);
            close(fd);
        }
        _exit(9);
    }
    tell(port_of(listening));
    meet();
    for (int i = 0; i < 2; i++) {
        kill(children[i], SIGTERM);
        await_child(children[i]);
    }
}

// Parent and child write and read in turns.
static void in_turns(const Case *self) {
    (void)self;
    int fd = connected(), ends[2], back[2];
    if (A) {
        for (int i = 0; i < 6; i++) {
            R(recv(fd, buffer, 3, MSG_WAITALL));
            hash("received", buffer, 3);
            R(send(fd, "ok", 2, 0));
        }
        R(recv(fd, buffer, 1, 0));
        return;
    }
    MUST(pipe(ends));
    MUST(pipe(back));
    pid_t child = MUST(fork());
    for (int i = 0; i < 3; i++) {
        char turn;
        if (child == 0) MUST(read(ends[0], &turn, 1));
        MUST(send(fd, child ? "par" : "chi", 3, 0));
        if (read_all(fd, buffer, 2) != 2) line("no answer");
        if (child == 0) MUST(write(back[1], "x", 1));
        else {
            MUST(write(ends[1], "x", 1));
            MUST(read(back[0], &turn, 1));
        }
    }
    if (child == 0) _exit(0);
    await_child(child);
    R(close(fd));
}

static void child_ends_parent_goes_on(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        pid_t child = MUST(fork());
        if (child == 0) _exit(5);
        await_child(child);
        R(send(fd, "still there", 11, 0));
        R(recv(fd, buffer, 10, 0));
        meet();
        return;
    }
    await_bytes(fd, 11);
    R(recv(fd, buffer, 100, 0));
    R(send(fd, "yes", 3, 0));
    meet();
}

static void parent_closes_child_goes_on(const Case *self) {
    bool exits = self->one;
    int fd = connected();
    if (A) {
        R(recv(fd, buffer, 5, MSG_WAITALL));
        hash("received", buffer, 5);
        R(recv(fd, buffer, 5, 0));
        meet();
        return;
    }
    pid_t middle = exits ? MUST(fork()) : 0; // as daemons do: the first parent ends
    if (middle > 0) {
        R(close(fd));
        await_child(middle);
        meet();
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        pause_ms(50);
        if (send(fd, "child", 5, 0) != 5) line("the child could not send");
        _exit(0);
    }
    if (exits) _exit(0);
    R(close(fd));
    await_child(child);
    meet();
}

static void connects_in_the_child(const Case *self) {
    (void)self;
    if (B) {
        int listening = listener();
        for (int i = 0; i < 2; i++) {
            int fd = F(accept(listening, NULL, NULL));
            R(recv(fd, buffer, 6, MSG_WAITALL));
            hash("received", buffer, 6);
        }
        meet();
        return;
    }
    int port = hear();
    int fd = dialed(port);
    R(send(fd, "parent", 6, 0));
    pid_t child = MUST(fork());
    if (child == 0) {
        fd = dialed(port);
        if (send(fd, "child!", 6, 0) != 6) line("the child could not send");
        _exit(0);
    }
    await_child(child);
    meet();
}

// A program that knows nothing of sockets, with a connection as its standard input and output.
static void program_on_it(const Case *self) {
    int fd = connected();
    if (A) {
        ask(fd, 3000);
        return;
    }
    char *words[] = {"cat", NULL};
    pid_t child = -1;
    if (self->one == 0) {
        child = MUST(fork());
        if (child == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            close(fd);
            execvp("cat", words);
            _exit(9);
        }
    } else if (self->one == 1) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 0);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        posix_spawn_file_actions_addclose(&actions, fd);
        R(posix_spawnp(&child, "cat", &actions, NULL, words, environ));
    } else {
        child = vfork();
        if (child == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            execvp("cat", words);
            _exit(9);
        }
    }
    R(close(fd));
    await_child(child);
}

// As inetd does it: a server per connection, with bytes that came before it was started.
static void program_after_bytes(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        ask(fd, 3000);
        return;
    }
    R(recv(fd, buffer, 1000, MSG_WAITALL));
    R(send(fd, buffer, 1000, 0));
    pid_t child = MUST(fork());
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execlp("sh", "sh", "-c", "cat", (char *)NULL);
        _exit(9);
    }
    R(close(fd));
    await_child(child);
}

// A makes no call while the connection is handed on, with bytes that nobody has read.
static void program_while_the_other_rests(const Case *self) {
    int fd = connected();
    if (A) {
        R(send(fd, pattern, 1000, 0));
        R(recv(fd, buffer, 400, MSG_WAITALL));
        hear();
        R(recv(fd, buffer + 400, 600, MSG_WAITALL));
        hash("received", buffer, 1000);
        R(close(fd));
        return;
    }
    R(recv(fd, buffer, 400, MSG_WAITALL));
    R(send(fd, buffer, 400, 0));
    char *words[] = {"head", "-c", "600", NULL};
    pid_t child = self->one ? MUST(fork()) : vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execvp("head", words);
        _exit(9);
    }
    await_child(child);
    tell('n');
    R(close(fd));
}

// A asks a program for echoes, one after the other, and ends only when it has them.
static void take_turns(int fd) {
    for (int i = 1; i <= 3; i++) {
        line("sent %zu", send_all(fd, pattern, 1000 * i));
        line("got %zu", read_all(fd, buffer, 1000 * i));
        hash("received", buffer, 1000 * i);
    }
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, buffer, 1, 0));
}

// The process that has used the connection becomes a program that knows nothing of it. Some bytes are unread then.
static void becomes_a_program(const Case *self) {
    if (A) {
        int fd = connected();
        line("sent %zu", send_all(fd, pattern, 5000));
        line("got %zu", read_all(fd, buffer, 5000));
        hash("received", buffer, 5000);
        take_turns(fd);
        return;
    }
    pid_t child = MUST(fork());
    if (child > 0) return await_child(child);
    int fd = connected();
    char text[100], *words[] = {"cat", NULL};
    if (read_all(fd, buffer, 2000) != 2000 || send_all(fd, buffer, 2000) != 2000) _exit(8);
    if (self->one == 2) {
        snprintf(text, sizeof(text), "exec cat <&%d >&%d", fd, fd);
        execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    }
    dup2(fd, 0);
    dup2(fd, 1);
    if (self->one == 0) execlp("cat", "cat", (char *)NULL);
    if (self->one == 1) execve("/bin/cat", words, environ);
    _exit(9);
}

// A program is started on a connection that was used, and the starter ends or goes on after it.
static void spawned_after_bytes(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        line("sent %zu", send_all(fd, pattern, 300000));
        line("got %zu", read_all(fd, buffer, 1000));
        take_turns(fd);
        return;
    }
    await_bytes(fd, 2000);
    R(recv(fd, buffer, 1000, MSG_WAITALL));
    R(send(fd, buffer, 1000, 0));
    char *words[] = {"sh", "-c", "head -c 299000 >/dev/null; cat", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    pid_t child = -1;
    R(posix_spawnp(&child, "sh", &actions, NULL, words, environ));
    await_child(child);
    R(recv(fd, buffer, 1, 0));
}

static void closed_at_exec(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(recv(fd, buffer, 1, 0));
        meet();
        return;
    }
    R(fcntl(fd, F_SETFD, FD_CLOEXEC));
    pid_t child = MUST(fork());
    if (child == 0) {
        execlp("sleep", "sleep", "0.3", (char *)NULL);
        _exit(9);
    }
    R(close(fd)); // the end comes when the child executes, not when it ends
    meet();
    await_child(child);
}

static void shell_beside(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        R(system("exit 3") >> 8);
        FILE *from = popen("echo from a shell", "r");
        char text[100] = {0};
        line("read %d: %s", fgets(text, sizeof(text), from) != NULL, text);
        R(pclose(from));
    }
    R(send(fd, "flows", 5, 0));
    R(recv(fd, buffer, 5, MSG_WAITALL));
    meet();
}

static int pass(int over, int fd) {
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec one = {"p", 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    return sendmsg(over, &message, 0);
}

static int take(int over) {
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    int fd = -1;
    if (recvmsg(over, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

static void passed_to_another(const Case *self) {
    bool after_bytes = self->one;
    int both[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both));
    pid_t child = 0;
    if (B) {
        child = MUST(fork()); // before there is a connection
        if (child == 0) {
            close(both[0]);
            int fd = take(both[1]);
            echo_until_the_end(fd);
            _exit(0);
        }
    }
    int fd = connected();
    if (after_bytes) {
        R(send(fd, "before", 6, 0));
        R(recv(fd, buffer, 6, MSG_WAITALL));
    }
    if (A) {
        if (self->two) take_turns(fd);
        else ask(fd, 3000);
        return;
    }
    R(pass(both[0], fd));
    R(close(fd));
    close(both[0]); // so that a child that got nothing ends
    await_child(child);
}

static void passed_within(const Case *self) {
    int both[2], fd = connected();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both));
    if (A) {
        if (self->one) take_turns(fd);
        else ask(fd, 3000);
        return;
    }
    R(pass(both[0], fd));
    R(close(fd));
    close(both[0]);
    int again = F(take(both[1]));
    echo_until_the_end(again);
    R(close(again));
}

static void listener_passed(const Case *self) {
    (void)self;
    int both[2];
    if (A) {
        ask(dialed(hear()), 2000);
        meet();
        return;
    }
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both));
    pid_t child = MUST(fork());
    if (child == 0) {
        int listening = take(both[1]), fd = accept(listening, NULL, NULL);
        echo_until_the_end(fd);
        _exit(0);
    }
    int listening = listener_with(0, 4);
    R(pass(both[0], listening));
    int port = port_of(listening);
    R(close(listening));
    tell(port);
    await_child(child);
    meet();
}

static void user_changes(const Case *self) {
    (void)self;
    if (A) {
        int port = hear();
        for (int i = 0; i < 2; i++) ask(dialed(port), 1000);
        meet();
        return;
    }
    int listening = listener(), fd = F(accept(listening, NULL, NULL));
    pid_t child = MUST(fork());
    if (child == 0) {
        // A worker gives its rights up, where it has any, and serves what it has and what comes.
        if (geteuid() == 0 && (setgid(65534) || setuid(65534))) _exit(9);
        echo_until_the_end(fd);
        close(fd);
        echo_until_the_end(accept(listening, NULL, NULL));
        _exit(0);
    }
    R(close(fd));
    R(close(listening));
    await_child(child);
    meet();
}

void process_cases(void) {
    add("process/forking-server", forking_server, 0, 0);
    add("process/preforked-server", preforked_server, 0, 0);
    add("process/workers-with-epoll", workers_with_epoll, 0, 0);
    add("process/in-turns", in_turns, 0, 0);
    add("process/child-ends-parent-goes-on", child_ends_parent_goes_on, 0, 0);
    add("process/parent-closes-child-goes-on", parent_closes_child_goes_on, 0, 0);
    add("process/parent-ends-grandchild-goes-on", parent_closes_child_goes_on, 1, 0);
    add("process/connects-in-the-child", connects_in_the_child, 0, 0);
    add("process/program-by-exec", program_on_it, 0, 0);
    add("process/program-by-spawn", program_on_it, 1, 0);
    add("process/program-by-vfork", program_on_it, 2, 0);
    add("process/program-after-bytes", program_after_bytes, 0, 0);
    add("process/becomes-a-program-by-name", becomes_a_program, 0, 0);
    add("process/becomes-a-program-by-path", becomes_a_program, 1, 0);
    add("process/becomes-a-program-by-number", becomes_a_program, 2, 0);
    add("process/spawned-after-bytes", spawned_after_bytes, 0, 0);
    add("process/closed-at-exec", closed_at_exec, 0, 0);
    add("process/shell-beside", shell_beside, 0, 0);
    add("process/turned-by-vfork-while-peer-rests", program_while_the_other_rests, 0, 0);
    add("process/turned-by-fork-while-peer-rests", program_while_the_other_rests, 1, 0);
    add("process/passed-to-another", passed_to_another, 0, 0);
    add("process/passed-after-bytes", passed_to_another, 1, 0);
    add("process/passed-within", passed_within, 0, 0);
    add("process/turns-passed-within", passed_within, 1, 0);
    add("process/turns-passed-to-another", passed_to_another, 0, 1);
    add("process/turns-passed-after-bytes", passed_to_another, 1, 1);
    add("process/listener-passed", listener_passed, 0, 0);
    add("process/user-changes", user_changes, 0, 0);
}
