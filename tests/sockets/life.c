// The life of a process: its ways to end, copies of it that the C library does not see, and what it does to descriptors
// that it never opened.
#include "body.h"
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>

// B reads what a process of A's wrote until its end.
static void read_to_the_end(int fd) {
    size_t got = read_all(fd, buffer, 1000);
    hash("received", buffer, got);
    R(recv(fd, buffer, 1, 0));
}

static void *returns(void *unused) { return unused; }

static void *cancels(void *first) {
    pause_ms(50);
    pthread_cancel(*(pthread_t *)first);
    pause_ms(50);
    return NULL;
}

// A worker that uses the connection, and is the last thread of the process.
static void *writes_last(void *fd) {
    pause_ms(100);
    if (write((int)(intptr_t)fd, "last", 4) != 4) _exit(8);
    return NULL;
}

static _Noreturn void ends_by(int way, int fd) {
    pthread_t thread, first = pthread_self();
    switch (way) {
    case 0: exit(5);
    case 1: _exit(5);
    case 2: quick_exit(5);
    case 3: syscall(SYS_exit_group, 5); abort();
    case 4: pthread_exit(NULL);
    case 5:
        MUST(pthread_create(&thread, NULL, writes_last, (void *)(intptr_t)fd));
        pthread_exit(NULL);
    case 6:
        MUST(pthread_create(&thread, NULL, cancels, &first));
        for (;;) pause();
    case 7:
        MUST(pthread_create(&thread, NULL, returns, NULL));
        pthread_detach(thread);
        pthread_exit(NULL);
    default: abort();
    }
}

static const char *const ends[] = {"exit", "_exit", "quick_exit", "exit_group", "pthread_exit", "last-worker",
                                   "cancelled", "detached-worker"};

// A child of A's has the connection alone, and ends. Its exit code is seen, so it ends.
static void child_ends(const Case *self) {
    if (B) {
        read_to_the_end(connected());
        meet();
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        int fd = connected();
        R(send(fd, "hello", 5, 0));
        ends_by(self->one, fd);
    }
    await_child(child);
    meet();
}

// The side itself ends, in its first thread or in another one.
static void side_ends(const Case *self) {
    int fd = connected();
    if (B) {
        read_to_the_end(fd);
        return;
    }
    R(send(fd, "hello", 5, 0));
    line("end");
    ends_by(self->one, fd);
}

static void becomes_a_daemon(const Case *self) {
    if (B) {
        int fd = connected();
        R(recv(fd, buffer, 5, MSG_WAITALL));
        R(send(fd, "go on", 5, 0));
        read_to_the_end(fd);
        meet();
        return;
    }
    // Its lines come in an order that nothing gives, so there are few.
    pid_t child = MUST(fork());
    if (child == 0) {
        int fd = connected(), set = MUST(epoll_create1(0));
        struct epoll_event event = {EPOLLIN, {0}};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        if (self->one) MUST(send(fd, "early", 5, 0));
        MUST(daemon(1, 1));
        if (!self->one) MUST(send(fd, "early", 5, 0));
        if (epoll_wait(set, &event, 1, 9000) != 1 || recv(fd, buffer, 5, MSG_WAITALL) != 5) broken("read", "", 0);
        MUST(send(fd, "late", 4, 0));
        _exit(0);
    }
    MUST(waitpid(child, NULL, 0));
    meet();
}

// What a library says in its destructor, when everything else has ended.
static void last_words(const Case *self) {
    if (B) {
        read_to_the_end(connected());
        meet();
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        char path[PATH_MAX];
        ssize_t length = MUST(readlink("/proc/self/exe", path, sizeof(path) - 20));
        strcpy(path + length, "-last-words.so");
        void *library = dlopen(path, RTLD_NOW);
        int *last_words_to = library ? dlsym(library, "last_words_to") : NULL;
        if (!last_words_to) broken(dlerror(), __FILE__, __LINE__);
        *last_words_to = connected();
        R(send(*last_words_to, "hello", 5, 0));
        if (self->one) pthread_exit(NULL);
        exit(5);
    }
    await_child(child);
    meet();
}

static int runs(void *fd) {
    bool all = read(*(int *)fd, buffer, 3) == 3 && write(*(int *)fd, "child", 5) == 5;
    _exit(all ? 6 : 7);
}

// A copy of the process by a call that tells nobody.
static void copied_by(const Case *self) {
    int fd = connected();
    if (B) {
        R(send(fd, "one", 3, 0));
        R(recv(fd, buffer, 5, MSG_WAITALL));
        hash("of the child", buffer, 5);
        R(send(fd, "two", 3, 0));
        read_to_the_end(fd);
        return;
    }
    static char stack[1 << 18] __attribute__((aligned(64)));
    pid_t child = -1;
    if (self->one == 0) child = MUST(clone(runs, stack + sizeof(stack), SIGCHLD, &fd));
    if (self->one == 1) child = MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
#ifdef SYS_fork
    if (self->one == 2) child = MUST(syscall(SYS_fork));
#else
    if (self->one == 2) child = MUST(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
#endif
    if (child == 0) runs(&fd);
    await_child(child);
    R(recv(fd, buffer, 3, MSG_WAITALL));
    R(send(fd, "parent", 6, 0));
    R(close(fd));
}

// Those of this program itself have numbers from 900 to 999.
enum { OWN = 900, BEYOND = 1000, LIBRARYS = 600 };

static bool is_free(int fd, int mine) { return fd > mine && (fd < OWN || fd >= BEYOND); }

static void closes(int how, int mine) {
    if (how == 0) {
        R(close_range(mine + 1, OWN - 1, 0));
        R(close_range(BEYOND, ~0u, 0));
    } else if (how == 1) {
        DIR *all = opendir("/proc/self/fd");
        int listed[4096], many = 0;
        for (struct dirent *one; (one = readdir(all)) && many < 4096;) listed[many++] = atoi(one->d_name);
        closedir(all);
        for (int i = 0; i < many; i++)
            if (is_free(listed[i], mine)) close(listed[i]);
    } else if (how == 2) {
        for (int fd = mine + 1; fd < BEYOND + 1000; fd++)
            if (is_free(fd, mine)) close(fd);
    } else {
        int file = MUST(open("/dev/null", O_RDWR));
        for (int fd = LIBRARYS; fd < OWN; fd++) dup2(file, fd);
        for (int fd = LIBRARYS; fd < OWN; fd++) close(fd);
        R(close(file));
    }
}

// A program closes, or uses, all the numbers that it does not know. Connections go on, and later ones move as well.
static void closes_strangers(const Case *self) {
    int fd = connected();
    if (A) closes(self->one, fd);
    for (int i = 0; i < 3; i++) {
        if (A) R(send(fd, "hello", 5, 0));
        R(recv(fd, buffer, 5, MSG_WAITALL));
        if (B) R(send(fd, "hello", 5, 0));
    }
    int second = connected();
    if (A) closes(self->one, second > fd ? second : fd);
    if (A) R(send(second, "again", 5, 0));
    R(recv(second, buffer, 5, MSG_WAITALL));
    if (B) R(send(second, "again", 5, 0));
    R(close(second));
    R(close(fd));
    meet();
}

void life_cases(void) {
    for (int i = 0; i < (int)COUNT(ends); i++) {
        char name[100];
        snprintf(name, sizeof(name), "life/child-ends-by-%s", ends[i]);
        add(name, child_ends, i, 0);
        snprintf(name, sizeof(name), "life/ends-by-%s", ends[i]);
        add(name, side_ends, i, 0);
    }
    add("life/daemon", becomes_a_daemon, 0, 0);
    add("life/daemon-after-bytes", becomes_a_daemon, 1, 0);
    add("life/last-words", last_words, 0, 0);
    add("life/last-words-of-the-last-thread", last_words, 1, 0);
    add("life/copied-by-clone", copied_by, 0, 0);
    add("life/copied-by-number", copied_by, 1, 0);
    add("life/copied-by-number-of-fork", copied_by, 2, 0);
    add("life/closes-strangers-by-range", closes_strangers, 0, 0);
    add("life/closes-strangers-as-listed", closes_strangers, 1, 0);
    add("life/closes-strangers-one-by-one", closes_strangers, 2, 0);
    add("life/closes-strangers-by-dup2", closes_strangers, 3, 0);
}
