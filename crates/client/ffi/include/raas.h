/* libraas: sockets over RDMA as a Service. Made by cbindgen from the sources of crate raas-ffi: do not edit.
 * docs/use/c.md and raas(3) say how to use it, docs/proof/paper.md how it relates to the paper. */

#ifndef RAAS_H
#define RAAS_H

#include <stdint.h>

/**
 * Reliable connection.
 */
#define RAAS_RC 1

/**
 * Unreliable connection.
 */
#define RAAS_UC 2

/**
 * Unreliable datagrams.
 */
#define RAAS_UD 4

/**
 * The verb SEND.
 */
#define RAAS_SEND 16

/**
 * The verb WRITE.
 */
#define RAAS_WRITE 32

/**
 * The verb READ.
 */
#define RAAS_READ 64

/**
 * Atomic operations.
 */
#define RAAS_ATOMIC 128

/**
 * The call waits until it can do something (raas_send, raas_recv, raas_sendto, raas_recvfrom).
 */
#define RAAS_WAIT 256

/**
 * The call fails with EAGAIN instead of waiting (raas_accept, raas_recv_zero_copy, raas_recvfrom_zero_copy).
 */
#define RAAS_NOWAIT 512

/**
 * What a function that counts bytes returns when it failed: (uint32_t)-1, so that == -1 compares too.
 */
#define RAAS_FAILED UINT32_MAX

/**
 * A host address and a port: the paper's Target. Fill it with raas_target_set.
 */
typedef struct raas_target {
  /**
   * IPv6 address in network byte order; an IPv4 address in its mapped form, ::ffff:a.b.c.d.
   */
  uint8_t address[16];
  /**
   * Port in the byte order of the host. 0 asks raas_listen for any free one.
   */
  uint16_t port;
} raas_target;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Connects to `t` and returns a descriptor, or -1. Waits for the answer. FLAGS 0: RC, and the service chooses. With
 * RAAS_UD the descriptor is a datagram socket at a free port, whose datagrams go to and come from `t` alone. With RAAS_UC
 * it is a connection of messages that may be lost, and the listener has RAAS_UC too.
 *
 * The caller's part:
 * `t` is null (EFAULT) or leads to a target.
 */
int raas_connect(const struct raas_target *t,
                 int flags);

/**
 * Listens at `t` (an address of this host or an unspecified one; port 0: any free one, which raas_local tells) and
 * returns a descriptor for raas_accept, or -1. With RAAS_UD it is a datagram socket, for raas_recvfrom and raas_sendto.
 * With RAAS_UC connections of messages are accepted, whose other ends have RAAS_UC too.
 *
 * The caller's part:
 * `t` is null (EFAULT) or leads to a target.
 */
int raas_listen(const struct raas_target *t,
                int flags);

/**
 * Takes the next connection of a listener and returns its descriptor, or -1. Waits for one, unless FLAGS have
 * RAAS_NOWAIT.
 */
int raas_accept(int fd, int flags);

/**
 * As raas_accept, with memory of the program's for what the connection receives: raas_recv_zero_copy gives bytes there
 * when it is not told another place. The memory must stay until raas_close of the connection has returned.
 *
 * The caller's part:
 * `buf` is null (EFAULT) or leads to `len` bytes, which stay until the connection is closed, and which nothing else
 * uses during a raas_recv_zero_copy of it.
 */
int raas_accept_buffer(int fd,
                       void *buf,
                       uint32_t len,
                       int flags);

/**
 * Closes a descriptor: 0, or -1. What was sent is still delivered. Calls of other threads that wait at it fail with
 * EBADF. close(2) does not do this: it frees the number alone, and the connection stays until another descriptor of
 * libraas gets the number.
 */
int raas_close(int fd);

/**
 * Ends a direction of a connection or both: `how` is SHUT_RD, SHUT_WR or SHUT_RDWR of sys/socket.h. 0, or -1.
 */
int raas_shutdown(int fd, int how);

/**
 * Writes the address of this end to `t`: 0, or -1.
 *
 * The caller's part:
 * `t` is null (EFAULT) or leads to a target.
 */
int raas_local(int fd, struct raas_target *t);

/**
 * Writes the address of the other end to `t`: 0, or -1.
 *
 * The caller's part:
 * `t` is null (EFAULT) or leads to a target.
 */
int raas_peer(int fd, struct raas_target *t);

/**
 * Writes the first address of `host` (IPv4, IPv6 or a name), and `port`, to `t`: 0, or -1.
 *
 * The caller's part:
 * `t` is null (EFAULT) or leads to a target. `host` is null (EFAULT) or a text that ends with a zero byte.
 */
int raas_target_set(struct raas_target *t, const char *host, uint16_t port);

/**
 * Writes `t` as text to `text`, as `10.0.0.2:7000` or `[::1]:7000`, with a zero byte at its end: 0, or -1 (ENOSPC if
 * `len` is too small; 56 bytes always suffice).
 *
 * The caller's part:
 * `t` is null (EFAULT) or leads to a target. `text` is null (EFAULT) or leads to `len` bytes.
 */
int raas_target_text(const struct raas_target *t,
                     char *text,
                     uint32_t len);

/**
 * The text of the last failure in this thread: what failed, and what to do. It stays until the next failure.
 */
const char *raas_error(void);

/**
 * The reason of the last failure in this thread as a key of docs/reasons.md, "no-listener" for instance; "" if the
 * daemons gave none. It stays until the next failure.
 */
const char *raas_error_reason(void);

/**
 * Sends up to `len` bytes (at most 1 GiB) and returns how many it took, or RAAS_FAILED. It does not wait: EAGAIN if
 * there is no room, unless FLAGS have RAAS_WAIT. The descriptor turns readable when there is room again. On a datagram
 * socket of raas_connect it sends one datagram, whole, and on a connection with RAAS_UC one message, whole (EMSGSIZE if
 * it is longer than the connection carries).
 *
 * The caller's part:
 * `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes.
 */
uint32_t raas_send(int fd,
                   const void *buf,
                   uint32_t len,
                   int flags);

/**
 * Receives up to `len` bytes and returns how many, 0 at the end, or RAAS_FAILED. It does not wait: EAGAIN if nothing is
 * there, unless FLAGS have RAAS_WAIT. On a datagram socket it receives one datagram (EMSGSIZE if `buf` is too small;
 * the datagram is kept), and so on a connection with RAAS_UC one message, of which an empty one is 0 bytes too.
 *
 * The caller's part:
 * `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes that nothing else uses during the call.
 */
uint32_t raas_recv(int fd,
                   void *buf,
                   uint32_t len,
                   int flags);

/**
 * Receives into memory of the program's and waits for it, unless FLAGS have RAAS_NOWAIT. If *buf_addr is not null the
 * bytes go there; if it is null they go to the start of the memory of raas_accept_buffer, and *buf_addr is set to it.
 * `len` bounds the bytes; with the memory of raas_accept_buffer 0 means all of it. Returns how many bytes, 0 at the
 * end, or RAAS_FAILED. The bytes are copied once, from the ring in which they arrived.
 *
 * The caller's part:
 * `buf_addr` is null (EFAULT) or leads to a pointer, which is null or leads to `len` bytes that nothing else uses
 * during the call.
 */
uint32_t raas_recv_zero_copy(int fd,
                             void **buf_addr,
                             uint32_t len,
                             int flags);

/**
 * Sends one datagram to `t` and returns its length, or RAAS_FAILED (EMSGSIZE if it is longer than one packet to that
 * host). It does not wait, unless FLAGS have RAAS_WAIT: the first datagram to a host may fail with EAGAIN, until the
 * daemons have a link. The descriptor is one of raas_listen or raas_connect with RAAS_UD.
 *
 * The caller's part:
 * `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes. `t` is null (EFAULT) or leads to a target.
 */
uint32_t raas_sendto(int fd,
                     const void *buf,
                     uint32_t len,
                     const struct raas_target *t,
                     int flags);

/**
 * Receives one datagram, writes the address of its sender to `t` (unless that is null), and returns its length, or
 * RAAS_FAILED (EMSGSIZE if `buf` is too small; the datagram is kept). It does not wait, unless FLAGS have RAAS_WAIT.
 *
 * The caller's part:
 * `buf` is null (EFAULT, unless `len` is 0) or leads to `len` bytes that nothing else uses during the call. `t` is null
 * or leads to a target.
 */
uint32_t raas_recvfrom(int fd,
                       void *buf,
                       uint32_t len,
                       struct raas_target *t,
                       int flags);

/**
 * Receives one datagram into memory of the program's at *buf_addr, `len` bytes of it, and waits for it, unless FLAGS
 * have RAAS_NOWAIT. 4096 bytes always suffice. Returns its length, or RAAS_FAILED. The bytes are copied once, from the
 * ring in which they arrived.
 *
 * The caller's part:
 * `buf_addr` is null (EFAULT) or leads to a pointer, which is null (EINVAL) or leads to `len` bytes that nothing else
 * uses during the call.
 */
uint32_t raas_recvfrom_zero_copy(int fd,
                                 void **buf_addr,
                                 uint32_t len,
                                 int flags);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* RAAS_H */
