/* Messages on UC: whole, in order and at most once, or lost.
 * Usage: unreliable serve HOST PORT    prints where it listens, answers each message of one client, and ends with it
 *        unreliable ask HOST PORT N    until N messages came back, whatever was lost
 * A last word WRITE asks for that verb, in the flags of the connection and of each answer; SEND is used without it. */
#include <errno.h>
#include <poll.h>
#include <raas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH 20000
static int verb = RAAS_SEND;
static char bytes[65536];

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, raas_error());
  return 1;
}

static int serve(const raas_target *at) {
  raas_target local;
  char text[56];
  int listener = raas_listen(at, RAAS_UC | verb);
  if (listener < 0) return failed("listen");
  if (raas_local(listener, &local) < 0 || raas_target_text(&local, text, sizeof text) < 0) return failed("local");
  printf("%s\n", text);
  fflush(stdout);
  int fd = raas_accept(listener, 0);
  if (fd < 0) return failed("accept");
  for (;;) {
    uint32_t got = raas_recv(fd, bytes, sizeof bytes, RAAS_WAIT);
    if (got == RAAS_FAILED && errno != ECONNRESET) return failed("recv");
    if (got == RAAS_FAILED || got == 0) break;
    if (raas_send(fd, bytes, got, RAAS_UC | verb | RAAS_WAIT) != got && errno != ECONNRESET && errno != EPIPE)
      return failed("send");
  }
  raas_close(fd);
  raas_close(listener);
  return 0;
}

static int ask(const raas_target *to, int count) {
  int back = 0, last = 0;
  int fd = raas_connect(to, RAAS_UC | verb);
  if (fd < 0) return failed("connect");
  for (int number = 1; back < count; number++) {
    memset(bytes, number, LENGTH);
    memcpy(bytes, &number, sizeof number);
    if (raas_send(fd, bytes, LENGTH, verb | RAAS_WAIT) != LENGTH) return failed("send");
    struct pollfd ready = {fd, POLLIN, 0};
    poll(&ready, 1, 500);
    uint32_t got = raas_recv(fd, bytes, sizeof bytes, 0);
    if (got == RAAS_FAILED && errno == EAGAIN) continue; /* it, or its answer, was lost */
    if (got == RAAS_FAILED) return failed("recv");
    int which;
    memcpy(&which, bytes, sizeof which);
    if (got != LENGTH || which <= last || bytes[LENGTH - 1] != (char)which) {
      fprintf(stderr, "message %d of %u bytes after message %d\n", which, got, last);
      return 1;
    }
    last = which;
    back++;
  }
  raas_close(fd);
  printf("%d messages came back\n", back);
  return 0;
}

int main(int argc, char **argv) {
  raas_target t;
  if (argc < 4 || raas_target_set(&t, argv[2], (uint16_t)atoi(argv[3])) < 0) return failed("usage");
  if (strcmp(argv[argc - 1], "WRITE") == 0) verb = RAAS_WRITE;
  return strcmp(argv[1], "serve") == 0 ? serve(&t) : ask(&t, argc > 4 ? atoi(argv[4]) : 1);
}
