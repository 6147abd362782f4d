// Stress: both sides draw the same steps from a seed. In each step a block of bytes goes from A to B and comes back,
// and one side or the other hands the connection on meanwhile: to children, to programs, to copies, over Unix sockets.
// Every byte is checked, and no descriptor may be left over.
#include "body.h"
#include <dirent.h>
#include <spawn.h>

extern char **environ;

enum { STEPS = 14, BLOCK_MAX = 60000 };

static uint64_t state;

static unsigned draw(unsigned below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

// All of the process, those of a library that was loaded into it included.
static int count_descriptors(void) {
    DIR *all = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *one; (one = readdir(all));) count += one->d_name[0] != '.';
    closedir(all);
    return count;
}

static void send_block(int fd, size_t count, unsigned step) {
    if (send_all(fd, pattern + step, count) != count) line("step %u: not all was sent", step);
}

static bool take_block(int fd, size_t count, unsigned step) {
    static char taken[BLOCK_MAX];
    return read_all(fd, taken, count) == count && memcmp(taken, pattern + step, count) == 0;
}

static int pass_to_oneself(int fd) {
    int both[2], taken = -1;
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'p';
    struct iovec one = {&byte, 1};
    struct msghdr message = {.msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, both));
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    if (sendmsg(both[0], &message, 0) != 1) line("not passed");
    close(fd);
    if (recvmsg(both[1], &message, 0) == 1) memcpy(&taken, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(taken));
    close(both[0]);
    close(both[1]);
    return taken;
}

// A program that copies so many bytes from the connection to itself.
static void copy_by_program(int fd, size_t count, bool by_fork) {
    char number[32], *words[] = {"head", "-c", number, NULL};
    snprintf(number, sizeof(number), "%zu", count);
    pid_t child;
    if (by_fork) {
        child = MUST(fork());
        if (child == 0) {
            dup2(fd, 0);
            dup2(fd, 1);
            execvp("head", words);
            _exit(9);
        }
    } else {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 0);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        if (posix_spawnp(&child, "head", &actions, NULL, words, environ)) line("not started");
        posix_spawn_file_actions_destroy(&actions);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status) line("the program ended with %d", status);
}

static void echo(int fd, size_t count, unsigned step) {
    if (!take_block(fd, count, step)) line("step %u: other bytes arrived", step);
    send_block(fd, count, step);
}

static void echo_by_child(int fd, size_t count, unsigned step) {
    pid_t child = MUST(fork());
    if (child == 0) {
        if (!take_block(fd, count, step)) _exit(7);
        send_block(fd, count, step);
        _exit(0);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status) line("step %u: the child ended with %d", step, status);
}

static int on_other_number(int fd) {
    int copy = MUST(dup(fd));
    close(fd);
    return copy;
}

static void hand_about(unsigned seed) {
    state = (uint64_t)seed * 7919 + 1;
    int fd = connected();
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned what = draw(10);
        size_t count = 1 + draw(draw(2) ? BLOCK_MAX : 200);
        if (A) {
            send_block(fd, count, step);
            if (what == 7) fd = on_other_number(fd);
            if (what == 8 && system("exit 0")) line("no shell");
            if (!take_block(fd, count, step)) line("step %u: other bytes came back", step);
            continue;
        }
        if (what == 0) fd = on_other_number(fd);
        if (what == 1) fd = pass_to_oneself(fd);
        if (what == 2 || what == 3) copy_by_program(fd, count, what == 2);
        else if (what == 4) echo_by_child(fd, count, step);
        else echo(fd, count, step);
    }
    line("%d steps", STEPS);
    meet();
    close(fd);
}

// The first connections make what a library keeps for all of them. The last must leave no more behind, once attempts
// that nobody waits for any more have ended too.
static void stress(const Case *self) {
    int first = connected();
    warm(first);
    close(first);
    hand_about(self->one);
    pause_ms(300);
    int before = count_descriptors(), after = before + 1;
    hand_about(self->one);
    for (int waited = 0; waited < 20000 && (after = count_descriptors()) > before; waited++) pause_ms(1);
    line("descriptors left: %d", after > before ? after - before : 0);
}

void stress_case(int seed) {
    char name[32];
    snprintf(name, sizeof(name), "stress/%d", seed);
    add(name, stress, seed, 0);
}

void stress_cases(void) {
    for (int seed = 0; seed < STRESS_LISTED; seed++) stress_case(seed);
}
