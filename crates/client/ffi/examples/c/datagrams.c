/* Datagrams there and back.
 * Usage: datagrams serve HOST PORT COUNT   sends back COUNT datagrams (PORT 0: any free one, which it prints)
 *        datagrams ask HOST PORT COUNT     sends COUNT, one after the other, and checks each answer; sends one again
 *                                          that got no answer within a second, since datagrams may be lost */
#include <errno.h>
#include <poll.h>
#include <raas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRIES_MAX 60
#define WAIT_MS 1000

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, raas_error());
  return 1;
}

static int serve(const raas_target *at, unsigned long count) {
  static char memory[4096];
  raas_target bound, from;
  char text[56];
  int fd = raas_listen(at, RAAS_UD);
  if (fd < 0) return fail("raas_listen");
  if (raas_local(fd, &bound) < 0 || raas_target_text(&bound, text, sizeof text) < 0) return fail("raas_local");
  printf("bound to %s\n", text);
  fflush(stdout);
  while (count-- > 0) {
    uint32_t len = raas_recvfrom(fd, memory, sizeof memory, &from, RAAS_WAIT);
    if (len == RAAS_FAILED) return fail("raas_recvfrom");
    if (raas_sendto(fd, memory, len, &from, RAAS_UD | RAAS_SEND | RAAS_WAIT) == RAAS_FAILED) return fail("raas_sendto");
  }
  return raas_close(fd) < 0 ? fail("raas_close") : 0;
}

/* 1: the answer came; 0: none came in time; -1: an error. */
static int answered(int fd, const char *question, uint32_t len) {
  char memory[4096];
  void *place = memory;
  for (;;) {
    uint32_t got = raas_recvfrom_zero_copy(fd, &place, sizeof memory, RAAS_NOWAIT);
    if (got != RAAS_FAILED && got == len && memcmp(memory, question, len) == 0) return 1;
    if (got != RAAS_FAILED) continue; /* the answer to an earlier one that was sent twice */
    if (errno != EAGAIN) return fail("raas_recvfrom_zero_copy"), -1;
    struct pollfd ready = {fd, POLLIN, 0};
    int polled = poll(&ready, 1, WAIT_MS);
    if (polled == 0) return 0;
    if (polled < 0 && errno != EINTR) return perror("poll"), -1;
  }
}

static int ask(const raas_target *to, unsigned long count) {
  char question[1000];
  int fd = raas_connect(to, RAAS_UD);
  if (fd < 0) return fail("raas_connect");
  for (unsigned long i = 0; i < count; i++) {
    uint32_t len = 24 + (uint32_t)(i * 37 % (sizeof question - 24));
    memset(question, (int)('a' + i % 26), len);
    snprintf(question, 24, "%lu", i);
    int came = 0;
    for (int tries = 0; tries < TRIES_MAX && came == 0; tries++) {
      if (raas_send(fd, question, len, RAAS_WAIT) == RAAS_FAILED) return fail("raas_send");
      came = answered(fd, question, len);
    }
    if (came < 0) return 1;
    if (came == 0) return fprintf(stderr, "no answer to datagram %lu\n", i), 1;
  }
  printf("%lu datagrams came back\n", count);
  return raas_close(fd) < 0 ? fail("raas_close") : 0;
}

int main(int argc, char **argv) {
  raas_target t;
  if (argc < 5) {
    fprintf(stderr, "usage: %s serve|ask HOST PORT COUNT\n", argv[0]);
    return 2;
  }
  if (raas_target_set(&t, argv[2], (uint16_t)atoi(argv[3])) < 0) return fail("raas_target_set");
  return (strcmp(argv[1], "serve") == 0 ? serve : ask)(&t, strtoul(argv[4], NULL, 10));
}
