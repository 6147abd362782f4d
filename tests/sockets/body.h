// What every case of the conformance program uses: two sides that meet, logged calls, connections between the sides.
//
// A case runs in two processes: side A is the client, side B the server. Both write a transcript: one line for each
// logged call, with its text, its result and its errno. Nothing in a transcript may depend on time, on descriptor
// numbers, on ports or on how TCP cut the bytes.
#ifndef BODY_H
#define BODY_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct Case {
    const char *name;
    void (*run)(const struct Case *self);
    int one, two; // what a table of cases varies
} Case;

extern char side;             // 'A' or 'B'
extern char pattern[1 << 20]; // bytes to send: they repeat with no power of two
extern char buffer[1 << 20];  // bytes received
extern volatile int sigpipes, interrupts;

#define STRESS_LISTED 40 // seeds of the stress that are cases; any other can be named

#define A (side == 'A')
#define B (side == 'B')
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

// A call, logged with its result.
#define R(call)                                                                                                        \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        long r_ = (long)(call);                                                                                        \
        logged(#call, r_, false);                                                                                      \
        r_;                                                                                                            \
    })
// The same of a call that gives a descriptor, whose number is not logged.
#define F(call)                                                                                                        \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        long r_ = (long)(call);                                                                                        \
        logged(#call, r_, true);                                                                                       \
        (int)r_;                                                                                                       \
    })
// Ends the case, as broken in itself, if the call fails.
#define MUST(call)                                                                                                     \
    ({                                                                                                                 \
        long m_ = (long)(call);                                                                                        \
        if (m_ < 0) broken(#call, __FILE__, __LINE__);                                                                 \
        m_;                                                                                                            \
    })

void add(const char *name, void (*run)(const Case *), int one, int two);
void logged(const char *call, long result, bool is_descriptor);
void line(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void broken(const char *what, const char *file, int at);
const char *errno_name(int number);
void hash(const char *what, const void *bytes, size_t count);

// The two sides: both wait here for each other; one tells, the other hears.
void meet(void);
void tell(long value);
long hear(void);

// Connections. A connects to B's address.
int listener(void);                              // of B, on a port of the kernel's; A hears the port
int listener_with(int type, int backlog);        // further bits of socket()'s type
struct sockaddr_in server_address(int port);     // B's address
int port_of(int fd);
int dialed(int port);                            // of A: a blocking connect
int connected(void);                             // both sides: a connection between them, warm if it shall be
int warm(int fd);                                // both sides: until it is known over what the connection goes
void connected_two(int *first, int *second);     // two connections, in the same order on both sides

// Waiting without a line in the transcript; a wait in vain ends after ten seconds with a line that says so.
void await_bytes(int fd, size_t count);          // so many can be read at once
void await_event(int fd, short events);          // poll says one of these
void await_child(pid_t child);                   // logs how it ended
void pause_ms(int ms);

size_t send_all(int fd, const char *bytes, size_t count);
size_t read_all(int fd, char *into, size_t count); // until so many, or the end, or an error
void set_blocking(int fd, bool blocking);
void on_signal(int number, int flags);           // counts in `interrupts`
const char *events_name(unsigned events);        // of poll and epoll
bool has_left_tcp(int fd);                       // at this end, both directions
int full(int fd);                                // non-blocking writes until none fits; gives the number of bytes
int temporary(const char *bytes, size_t count);  // an unnamed file with these bytes

void transfer_cases(void);
void trouble_cases(void);
void readiness_cases(void);
void connect_cases(void);
void accept_cases(void);
void flag_cases(void);
void ending_cases(void);
void descriptor_cases(void);
void option_cases(void);
void buffer_cases(void);
void edge_cases(void);
void epoll_cases(void);
void process_cases(void);
void thread_cases(void);
void signal_cases(void);
void file_cases(void);
void ring_cases(void);
void keep_cases(void);
void handler_cases(void);
void life_cases(void);
void stress_cases(void);
void stress_case(int seed); // one more of them

#endif
