/* What is refused, with which errno and which words; fork; the descriptor in poll. Usage: refusals HOST_OF_THE_DAEMON */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <raas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;

/* -1 and RAAS_FAILED are the same 32 bits. */
static void refused(int line, const char *call, uint32_t outcome, int wanted, const char *words) {
  int had = errno;
  if (outcome == RAAS_FAILED && had == wanted && strstr(raas_error(), words)) return;
  fprintf(stderr, "%d: %s: %u, errno %s and not %s, \"%s\" without \"%s\"\n", line, call, outcome, strerrorname_np(had),
          strerrorname_np(wanted), raas_error(), words);
  wrong = 1;
}
#define REFUSED(call, wanted, words) refused(__LINE__, #call, (uint32_t)(call), wanted, words)
#define CHECK(what) ((what) ? (void)0 : (fprintf(stderr, "%d: not %s (%s)\n", __LINE__, #what, raas_error()), exit(1)))

static int readable(int fd, int ms) {
  struct pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, ms) == 1;
}

static void flags(const raas_target *at) {
  REFUSED(raas_connect(at, RAAS_RC | RAAS_UC), EINVAL, "RC and for UC");
  REFUSED(raas_connect(at, RAAS_READ | RAAS_ATOMIC), EINVAL, "READ and for ATOMIC");
  REFUSED(raas_connect(at, RAAS_UC | RAAS_READ), EINVAL, "UC has no READ");
  REFUSED(raas_listen(at, RAAS_UC | RAAS_ATOMIC), EINVAL, "UC has no ATOMIC");
  REFUSED(raas_connect(at, RAAS_UD | RAAS_WRITE), EINVAL, "UD has no WRITE");
  REFUSED(raas_listen(at, RAAS_UD | RAAS_READ), EINVAL, "UD has no READ");
  REFUSED(raas_connect(at, RAAS_ATOMIC), EOPNOTSUPP, "does not carry RC with ATOMIC");
  REFUSED(raas_connect(at, 0x4000), EINVAL, "0x4000");
  REFUSED(raas_connect(at, RAAS_NOWAIT), EOPNOTSUPP, "RAAS_NOWAIT");
  REFUSED(raas_accept(0, RAAS_NOWAIT | RAAS_WAIT), EBADF, "descriptor 0");
}

int main(int argc, char **argv) {
  raas_target at, peer;
  char text[56], bytes[64];
  void *place = NULL;
  (void)argc;
  REFUSED(raas_target_set(NULL, "::1", 1), EFAULT, "t is a null pointer");
  REFUSED(raas_target_set(&at, NULL, 1), EFAULT, "host is a null pointer");
  REFUSED(raas_connect(NULL, 0), EFAULT, "t is a null pointer");
  REFUSED(raas_send(0, "x", 1, 0), EBADF, "descriptor 0 is none of libraas");
  REFUSED(raas_close(12345), EBADF, "12345");
  CHECK(raas_target_set(&at, argv[1], 0) == 0);
  REFUSED(raas_target_text(&at, text, 3), ENOSPC, "3 were given");
  flags(&at);

  int listener = raas_listen(&at, 0);
  CHECK(listener >= 0 && raas_local(listener, &at) == 0);
  REFUSED(raas_listen(&at, 0), EADDRINUSE, "(port-in-use)");
  CHECK(strcmp(raas_error_reason(), "port-in-use") == 0);
  REFUSED(raas_accept(listener, RAAS_NOWAIT), EAGAIN, "");
  CHECK(!readable(listener, 0));
  REFUSED(raas_accept_buffer(listener, NULL, 4, 0), EFAULT, "buf is a null pointer");
  REFUSED(raas_send(listener, "x", 1, 0), ENOTCONN, "is a listener");
  REFUSED(raas_peer(listener, &peer), ENOTCONN, "");
  int hole = dup(0);
  int client = raas_connect(&at, RAAS_WRITE);
  CHECK(client >= 0 && readable(listener, 10000));
  int server = raas_accept(listener, 0);
  CHECK(server >= 0 && raas_peer(client, &peer) == 0 && memcmp(&peer, &at, sizeof at) == 0);

  /* The descriptor is readable exactly while there is something, however little of it is taken at a time. */
  REFUSED(raas_recv(server, bytes, sizeof bytes, 0), EAGAIN, "");
  CHECK(!readable(server, 0));
  CHECK(raas_send(client, "abc", 3, RAAS_RC) == 3);
  for (int i = 0; i < 3; i++) CHECK(readable(server, 10000) && raas_recv(server, bytes, 1, 0) == 1 && bytes[0] == 'a' + i);
  REFUSED(raas_recv(server, bytes, 1, 0), EAGAIN, "");
  CHECK(!readable(server, 0));
  /* Until there is no room; then there is, and the sender hears of it though it has nothing to receive. */
  static char much[1 << 16];
  unsigned long sent = 0, got = 0;
  for (uint32_t count; (count = raas_send(client, much, sizeof much, 0)) != RAAS_FAILED;) sent += count;
  CHECK(errno == EAGAIN && !readable(client, 0));
  while (got < sent) {
    uint32_t count = raas_recv(server, much, sizeof much, RAAS_WAIT);
    CHECK(count != RAAS_FAILED && count > 0);
    got += count;
  }
  CHECK(readable(client, 10000) && raas_send(client, "x", 1, 0) == 1 && raas_recv(server, bytes, 9, RAAS_WAIT) == 1);

  REFUSED(raas_recv(server, NULL, 4, 0), EFAULT, "buf is a null pointer");
  REFUSED(raas_send(client, NULL, 4, 0), EFAULT, "buf is a null pointer");
  REFUSED(raas_send(client, much, (1u << 30) + 1, 0), EMSGSIZE, "1073741824");
  REFUSED(raas_recv_zero_copy(server, NULL, 4, 0), EFAULT, "buf_addr is a null pointer");
  REFUSED(raas_recv_zero_copy(server, &place, 4, 0), EINVAL, "raas_accept_buffer");
  REFUSED(raas_send(client, "x", 1, RAAS_UD), EOPNOTSUPP, "UD was asked for where the transport is RC");
  REFUSED(raas_send(client, "x", 1, RAAS_ATOMIC), EOPNOTSUPP, "RC with ATOMIC");
  static const int verbs[] = {RAAS_SEND, RAAS_READ, RAAS_WRITE};
  for (int i = 0; i < 3; i++)
    CHECK(raas_send(client, "v", 1, verbs[i]) == 1 && raas_recv(server, bytes, 9, RAAS_WAIT) == 1 && bytes[0] == 'v');
  REFUSED(raas_sendto(client, "x", 1, &at, 0), EOPNOTSUPP, "UD was asked for where the transport is RC");
  REFUSED(raas_recvfrom(client, bytes, 1, NULL, 0), EOPNOTSUPP, "UD was asked for");
  REFUSED(raas_shutdown(client, 77), EINVAL, "77");

  int datagrams = raas_listen(&at, RAAS_UD | RAAS_SEND);
  CHECK(datagrams >= 0);
  REFUSED(raas_accept(datagrams, 0), EINVAL, "is no listener");
  REFUSED(raas_sendto(datagrams, much, sizeof much, &at, RAAS_WAIT), EMSGSIZE, "longer than");
  REFUSED(raas_sendto(datagrams, "x", 1, NULL, 0), EFAULT, "t is a null pointer");
  CHECK(raas_sendto(datagrams, "hello", 5, &at, RAAS_WAIT) == 5 && readable(datagrams, 10000));
  REFUSED(raas_recvfrom(datagrams, bytes, 4, &peer, RAAS_WAIT), EMSGSIZE, "it was kept");
  CHECK(raas_recvfrom(datagrams, bytes, 5, NULL, RAAS_WAIT) == 5 && memcmp(bytes, "hello", 5) == 0);

  /* A child has none of these, and makes its own. */
  pid_t child = fork();
  if (child == 0) {
    REFUSED(raas_send(client, "x", 1, 0), EBADF, "none of libraas in this process");
    REFUSED(raas_close(server), EBADF, "none of libraas in this process");
    int own = raas_connect(&at, 0);
    CHECK(own >= 0 && raas_send(own, "child", 5, 0) == 5 && raas_close(own) == 0);
    _exit(wrong);
  }
  int status, from_child = raas_accept(listener, 0);
  CHECK(from_child >= 0 && raas_recv(from_child, bytes, sizeof bytes, RAAS_WAIT) == 5);
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(raas_send(client, "still", 5, 0) == 5 && raas_recv(server, bytes, sizeof bytes, RAAS_WAIT) == 5);

  /* close(2) instead of raas_close: the next connection that gets the number ends the old one. The lower number goes to
   * the library's own descriptor. */
  CHECK(close(hole) == 0 && close(client) == 0);
  int again = raas_connect(&at, 0);
  CHECK(again == client && raas_recv(server, bytes, sizeof bytes, RAAS_WAIT) == 0);
  CHECK(raas_close(again) == 0 && fcntl(again, F_GETFD) == -1);
  REFUSED(raas_close(again), EBADF, "it was closed");
  CHECK(raas_close(server) == 0 && raas_close(from_child) == 0 && raas_close(datagrams) == 0 && raas_close(listener) == 0);
  if (!wrong) puts("all refused as they should be");
  return wrong;
}
