// Threads that share connections.
#include "body.h"

static void *start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, argument)) broken("pthread_create", __FILE__, __LINE__);
    return (void *)thread;
}

static void join(void *thread) { pthread_join((pthread_t)thread, NULL); }

#define FLOOD 600000

static void *floods(void *fd) {
    line("sent %zu", send_all((int)(intptr_t)fd, pattern, FLOOD));
    return NULL;
}

// Each side writes and reads at the same time, each in a thread.
static void both_ways(const Case *self) {
    (void)self;
    int fd = connected();
    void *thread = start(floods, (void *)(intptr_t)fd);
    size_t got = read_all(fd, buffer, FLOOD);
    join(thread);
    hash("received", buffer, got);
    meet();
}

static void *shuts_later(void *fd) {
    pause_ms(50);
    shutdown((int)(intptr_t)fd, SHUT_RD);
    return NULL;
}

static void shut_wakes_a_reader(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        void *thread = start(shuts_later, (void *)(intptr_t)fd);
        R(recv(fd, buffer, 10, 0));
        join(thread);
    }
    meet();
}

static void *receives(void *fd) {
    char byte;
    recv((int)(intptr_t)fd, &byte, 1, 0);
    return "came back";
}

static void cancelled(const Case *self) {
    (void)self;
    int fd = connected();
    if (A) {
        pthread_t thread = (pthread_t)start(receives, (void *)(intptr_t)fd);
        pause_ms(50);
        R(pthread_cancel(thread));
        void *result;
        R(pthread_join(thread, &result));
        line("cancelled %d", result == PTHREAD_CANCELED);
        meet();
        R(recv(fd, buffer, 5, MSG_WAITALL)); // the connection is as it was
        return;
    }
    meet();
    R(send(fd, "fives", 5, 0));
}

static int shared, counted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *takes(void *argument) {
    (void)argument;
    char bytes[100];
    for (ssize_t got; (got = recv(shared, bytes, sizeof(bytes), 0)) > 0;) {
        pthread_mutex_lock(&lock);
        counted += got;
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

// Several threads read one connection: no byte comes twice, none is lost, all see the end.
static void many_readers(const Case *self) {
    (void)self;
    shared = connected();
    if (A) {
        line("sent %zu", send_all(shared, pattern, 200000));
        R(shutdown(shared, SHUT_WR));
        meet();
        return;
    }
    void *threads[4];
    for (int i = 0; i < 4; i++) threads[i] = start(takes, NULL);
    for (int i = 0; i < 4; i++) join(threads[i]);
    line("counted %d", counted);
    meet();
}

static void *writes_words(void *letter) {
    char word[16];
    memset(word, (char)(intptr_t)letter, sizeof(word));
    for (int i = 0; i < 1000; i++)
        if (send(shared, word, sizeof(word), 0) != sizeof(word)) line("short");
    return NULL;
}

// Several threads write one connection: small writes stay whole.
static void many_writers(const Case *self) {
    (void)self;
    shared = connected();
    if (A) {
        void *threads[4];
        for (int i = 0; i < 4; i++) threads[i] = start(writes_words, (void *)(intptr_t)('a' + i));
        for (int i = 0; i < 4; i++) join(threads[i]);
        meet();
        return;
    }
    size_t got = read_all(shared, buffer, 4 * 1000 * 16);
    int whole = 0, of[4] = {0};
    for (size_t at = 0; at + 16 <= got; at += 16) {
        bool same = true;
        for (int i = 1; i < 16; i++) same &= buffer[at + i] == buffer[at];
        whole += same;
        if (buffer[at] >= 'a' && buffer[at] < 'e') of[buffer[at] - 'a']++;
    }
    line("%zu bytes, %d words whole, %d %d %d %d", got, whole, of[0], of[1], of[2], of[3]);
    meet();
}

static int shared_port;

static void *client(void *number) {
    int fd = dialed(shared_port), seed = (int)(intptr_t)number;
    for (int i = 0; i < 100; i++) {
        char word[8], back[8];
        snprintf(word, sizeof(word), "%03d-%03d", seed, i);
        if (send(fd, word, 8, 0) != 8 || recv(fd, back, 8, MSG_WAITALL) != 8 || memcmp(word, back, 8)) return "bad";
    }
    close(fd);
    return NULL;
}

static void *serves(void *fd) {
    char bytes[100];
    ssize_t got;
    while ((got = recv((int)(intptr_t)fd, bytes, sizeof(bytes), 0)) > 0)
        if (send((int)(intptr_t)fd, bytes, got, 0) != got) break;
    close((int)(intptr_t)fd);
    return NULL;
}

static void thread_for_each(const Case *self) {
    (void)self;
    enum { COUNT_OF = 8 };
    void *threads[COUNT_OF], *result;
    int good = 0;
    if (A) {
        shared_port = hear();
        for (int i = 0; i < COUNT_OF; i++) threads[i] = start(client, (void *)(intptr_t)i);
    } else {
        int listening = listener();
        for (int i = 0; i < COUNT_OF; i++)
            threads[i] = start(serves, (void *)(intptr_t)MUST(accept(listening, NULL, NULL)));
    }
    for (int i = 0; i < COUNT_OF; i++) good += !pthread_join((pthread_t)threads[i], &result) && !result;
    line("%d threads did well", good);
}

static void *accepts(void *listening) {
    int fd = accept((int)(intptr_t)listening, NULL, NULL);
    return (void *)(intptr_t)(send(fd, "hi", 2, 0) == 2);
}

static void several_accept(const Case *self) {
    (void)self;
    if (A) {
        int port = hear(), good = 0;
        pause_ms(30);
        for (int i = 0; i < 4; i++) good += read_all(dialed(port), buffer, 2) == 2;
        line("%d greeted", good);
        meet();
        return;
    }
    int listening = listener(), good = 0;
    void *threads[4], *result;
    for (int i = 0; i < 4; i++) threads[i] = start(accepts, (void *)(intptr_t)listening);
    for (int i = 0; i < 4; i++) good += !pthread_join((pthread_t)threads[i], &result) && result;
    line("%d accepted", good);
    meet();
}

static void *polls(void *fd) {
    struct pollfd one = {(int)(intptr_t)fd, POLLIN, 0};
    return (void *)(intptr_t)(poll(&one, 1, 10000) == 1 && one.revents == POLLIN);
}

// All who wait are woken.
static void several_poll(const Case *self) {
    (void)self;
    int fd = connected(), good = 0;
    meet();
    if (A) {
        pause_ms(50);
        R(send(fd, "x", 1, 0));
    } else {
        void *threads[4], *result;
        for (int i = 0; i < 4; i++) threads[i] = start(polls, (void *)(intptr_t)fd);
        for (int i = 0; i < 4; i++) good += !pthread_join((pthread_t)threads[i], &result) && result;
        line("%d saw it", good);
    }
    meet();
}

static void fork_beside_threads(const Case *self) {
    (void)self;
    int fd = connected(), good = 0;
    void *thread = start(floods, (void *)(intptr_t)fd);
    if (A)
        for (int i = 0; i < 20; i++) {
            pid_t child = MUST(fork());
            if (child == 0) _exit(0);
            int status;
            good += waitpid(child, &status, 0) == child && status == 0;
        }
    size_t got = read_all(fd, buffer, FLOOD);
    join(thread);
    hash("received", buffer, got);
    if (A) line("%d children", good);
    meet();
}

void thread_cases(void) {
    add("thread/both-ways", both_ways, 0, 0);
    add("thread/shut-wakes-a-reader", shut_wakes_a_reader, 0, 0);
    add("thread/cancelled", cancelled, 0, 0);
    add("thread/many-readers", many_readers, 0, 0);
    add("thread/many-writers", many_writers, 0, 0);
    add("thread/one-for-each", thread_for_each, 0, 0);
    add("thread/several-accept", several_accept, 0, 0);
    add("thread/several-poll", several_poll, 0, 0);
    add("thread/fork-beside", fork_beside_threads, 0, 0);
}
