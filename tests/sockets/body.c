// The sides and their meeting, the transcript, and connections. Control runs over two named pipes, which are no sockets.
#include "body.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define CASES_MAX 1000
#define WAIT_MS 10000

char side;
char pattern[1 << 20], buffer[1 << 20];
volatile int sigpipes, interrupts;

static Case cases[CASES_MAX];
static int case_count, to_other, from_other, transcript;
static struct in_addr server_ip;

void add(const char *name, void (*run)(const Case *), int one, int two) {
    if (case_count == CASES_MAX) abort();
    cases[case_count++] = (Case){strdup(name), run, one, two};
}

// Names of what differs between kernels are left out: these are the names that POSIX and Linux give.
const char *errno_name(int number) {
    const char *name = strerrorname_np(number);
    return name ? name : "?";
}

// One write for each line, so that children and threads do not mix theirs.
void line(const char *format, ...) {
    char text[1024];
    int length = snprintf(text, sizeof(text), "%c ", side);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(text + length, sizeof(text) - length - 1, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof(text) - 2) length = sizeof(text) - 2;
    text[length++] = '\n';
    if (syscall(SYS_write, transcript, text, length) != length) _exit(3);
}

void logged(const char *call, long result, bool is_descriptor) {
    int number = errno;
    if (result == -1)
        line("%s = -1 %s", call, errno_name(number));
    else if (is_descriptor)
        line("%s = a descriptor", call);
    else
        line("%s = %ld", call, result);
    errno = number;
}

void broken(const char *what, const char *file, int at) {
    line("broken: %s at %s:%d: %s", what, strrchr(file, '/') ? strrchr(file, '/') + 1 : file, at, errno_name(errno));
    _exit(4);
}

// FNV-1a, 64 bits.
void hash(const char *what, const void *bytes, size_t count) {
    uint64_t value = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; i++) value = (value ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3;
    line("%s: %zu bytes, hash %016llx", what, count, (unsigned long long)value);
}

void meet(void) {
    tell('m');
    hear();
}

void tell(long value) {
    if (syscall(SYS_write, to_other, &value, sizeof(value)) != sizeof(value)) _exit(3);
}

long hear(void) {
    long value;
    ssize_t got;
    do got = syscall(SYS_read, from_other, &value, sizeof(value));
    while (got == -1 && errno == EINTR);
    if (got != sizeof(value)) _exit(3);
    return value;
}

struct sockaddr_in server_address(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = server_ip};
}

int port_of(int fd) {
    struct sockaddr_in address = {0};
    socklen_t length = sizeof(address);
    MUST(getsockname(fd, (struct sockaddr *)&address, &length));
    return ntohs(address.sin_port);
}

int listener_with(int type, int backlog) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM | type, 0)), on = 1;
    struct sockaddr_in address = server_address(0);
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
    MUST(bind(fd, (struct sockaddr *)&address, sizeof(address)));
    MUST(listen(fd, backlog));
    return fd;
}

int listener(void) {
    int fd = listener_with(0, 64);
    tell(port_of(fd));
    return fd;
}

int dialed(int port) {
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in address = server_address(port);
    MUST(connect(fd, (struct sockaddr *)&address, sizeof(address)));
    return fd;
}

// What the library of `raas run` says of a connection; not there on kernel TCP alone.
static int (*path_of)(int descriptor);
enum { UNDECIDED, ON_TCP, ON_RAAS, ON_POLLED_TCP, NO_LIBRARY, WARM_ROUNDS = 4000 };

static void one_byte(int fd, char *byte, bool sends) {
    ssize_t done = sends ? write(fd, byte, 1) : read(fd, byte, 1);
    if (done != 1) broken("a byte of the warm-up", __FILE__, __LINE__);
}

// Small bytes to and fro until both ends know over what the connection goes. What this end knew then: the other side may
// have gone on since.
int warm(int fd) {
    char own = NO_LIBRARY, others = UNDECIDED;
    for (int round = 0; round < WARM_ROUNDS; round++) {
        if (path_of) own = (char)path_of(fd);
        if (A) one_byte(fd, &own, true);
        one_byte(fd, &others, false);
        if (B) one_byte(fd, &own, true);
        if (own > UNDECIDED && others > UNDECIDED || own == NO_LIBRARY || others == NO_LIBRARY) break;
        if (round > 20) pause_ms(1);
    }
    return own;
}

bool has_left_tcp(int fd) {
    return path_of && path_of(fd) == ON_RAAS;
}

static int warmed(int fd) {
    // Beside the transcript: the starter counts them.
    if (getenv("SOCKETS_WARM")) fprintf(stderr, "path %d\n", warm(fd));
    return fd;
}

int connected(void) {
    if (A) return warmed(dialed(hear()));
    int listening = listener(), fd = MUST(accept(listening, NULL, NULL));
    MUST(close(listening));
    return warmed(fd);
}

void connected_two(int *first, int *second) {
    if (A) {
        int port = hear();
        *first = warmed(dialed(port));
        meet();
        *second = warmed(dialed(port));
        return;
    }
    int listening = listener();
    *first = warmed(MUST(accept(listening, NULL, NULL)));
    meet();
    *second = warmed(MUST(accept(listening, NULL, NULL)));
    MUST(close(listening));
}

void pause_ms(int ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) {}
}

void await_bytes(int fd, size_t count) {
    for (int waited = 0; waited < WAIT_MS; waited++) {
        int saved = errno;
        ssize_t got = recv(fd, buffer, count, MSG_PEEK | MSG_DONTWAIT);
        errno = saved;
        if (got >= (ssize_t)count) return;
        pause_ms(1);
    }
    line("waited in vain for %zu bytes", count);
}

void await_event(int fd, short events) {
    for (int waited = 0; waited < WAIT_MS; waited++) {
        struct pollfd one = {fd, events, 0};
        if (poll(&one, 1, 0) == 1 && one.revents & events) return;
        pause_ms(1);
    }
    line("waited in vain for %s", events_name(events));
}

void await_child(pid_t child) {
    int status = 0;
    pid_t got;
    do got = waitpid(child, &status, 0);
    while (got == -1 && errno == EINTR);
    if (got != child)
        line("the child is lost: %s", errno_name(errno));
    else if (WIFSIGNALED(status))
        line("the child ended by SIG%s", sigabbrev_np(WTERMSIG(status)));
    else
        line("the child ended with %d", WEXITSTATUS(status));
}

size_t send_all(int fd, const char *bytes, size_t count) {
    size_t sent = 0;
    while (sent < count) {
        ssize_t now = send(fd, bytes + sent, count - sent, MSG_NOSIGNAL);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) break;
        sent += now;
    }
    return sent;
}

size_t read_all(int fd, char *into, size_t count) {
    size_t got = 0;
    while (got < count) {
        ssize_t now = read(fd, into + got, count - got);
        if (now < 0 && errno == EINTR) continue;
        if (now <= 0) break;
        got += now;
    }
    return got;
}

void set_blocking(int fd, bool blocking) {
    int flags = MUST(fcntl(fd, F_GETFL));
    MUST(fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK));
}

static void count_interrupt(int number) {
    (void)number;
    interrupts++;
}

static void count_pipe(int number) {
    (void)number;
    sigpipes++;
}

void on_signal(int number, int flags) {
    struct sigaction action = {.sa_handler = number == SIGPIPE ? count_pipe : count_interrupt, .sa_flags = flags};
    MUST(sigaction(number, &action, NULL));
}

// Bits of poll and of epoll have the same values on Linux.
const char *events_name(unsigned events) {
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "IN"},   {POLLPRI, "PRI"},     {POLLOUT, "OUT"},          {POLLERR, "ERR"},
                 {POLLHUP, "HUP"}, {POLLRDHUP, "RDHUP"}, {POLLNVAL, "NVAL"},        {POLLRDNORM, "RDNORM"},
                 {POLLWRNORM, "WRNORM"}};
    static __thread char text[128];
    text[0] = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        if (events & names[i].bit) strcat(strcat(text, text[0] ? "|" : ""), names[i].name);
    return text[0] ? text : "none";
}

int full(int fd) {
    set_blocking(fd, false);
    long total = 0;
    for (int quiet = 0; quiet < 12;) {
        ssize_t now = send(fd, pattern + total % 1000, 65536 - total % 1000, MSG_NOSIGNAL);
        if (now > 0) {
            total += now;
            quiet = 0;
            continue;
        }
        if (errno != EAGAIN) broken("a send that fills", __FILE__, __LINE__);
        quiet++;
        pause_ms(50); // TCP's probes of a closed window, after 200 ms and more, may take what is left of it
    }
    return total;
}

int temporary(const char *bytes, size_t count) {
    char name[] = "/tmp/sockets-conformance-XXXXXX";
    int fd = MUST(mkstemp(name));
    MUST(unlink(name));
    for (size_t at = 0; at < count;) at += MUST(write(fd, bytes + at, count - at));
    MUST(lseek(fd, 0, SEEK_SET));
    return fd;
}

// Out of the way of the numbers that cases look at.
static int high(int fd, int place) {
    int moved = MUST(fcntl(fd, F_DUPFD_CLOEXEC, place));
    close(fd);
    return moved;
}

static int named_pipe(const char *directory, const char *name, int place) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (mkfifo(path, 0600) == -1 && errno != EEXIST) broken("mkfifo", __FILE__, __LINE__);
    return high(MUST(open(path, O_RDWR | O_CLOEXEC)), place);
}

static void all_cases(void) {
    transfer_cases();
    trouble_cases();
    readiness_cases();
    connect_cases();
    accept_cases();
    flag_cases();
    ending_cases();
    descriptor_cases();
    option_cases();
    buffer_cases();
    edge_cases();
    epoll_cases();
    process_cases();
    thread_cases();
    signal_cases();
    file_cases();
    ring_cases();
    keep_cases();
    handler_cases();
    life_cases();
    stress_cases();
}

int main(int count, char **words) {
    all_cases();
    if (count == 2 && strcmp(words[1], "list") == 0) {
        for (int i = 0; i < case_count; i++) puts(cases[i].name);
        return 0;
    }
    if (count != 5 || (words[1][0] != 'A' && words[1][0] != 'B') || !inet_aton(words[3], &server_ip)) {
        fprintf(stderr, "usage: %s list | %s A|B DIRECTORY SERVER_IP CASE\n", words[0], words[0]);
        return 2;
    }
    side = words[1][0];
    transcript = high(MUST(dup(1)), 900);
    to_other = named_pipe(words[2], A ? "to-b" : "to-a", 910);
    from_other = named_pipe(words[2], A ? "to-a" : "to-b", 920);
    // A case that computes for ever, and one whose starter is gone, end.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setrlimit(RLIMIT_CPU, &(struct rlimit){20, 20});
    for (size_t i = 0; i < sizeof(pattern); i++) pattern[i] = (char)(i % 251 ^ i / 65521);
    on_signal(SIGPIPE, SA_RESTART);
    int seed;
    if (sscanf(words[4], "stress/%d", &seed) == 1 && seed >= STRESS_LISTED) stress_case(seed);
    path_of = (int (*)(int))dlsym(RTLD_DEFAULT, "raas_run_path");
    for (int i = 0; i < case_count; i++) {
        if (strcmp(cases[i].name, words[4])) continue;
        cases[i].run(&cases[i]);
        if (sigpipes) line("SIGPIPE came %d times", sigpipes);
        line("end");
        return 0;
    }
    fprintf(stderr, "no case %s\n", words[4]);
    return 2;
}
