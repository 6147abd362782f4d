/* Sends bytes to an echo server and checks each that comes back. It never waits in a call: it polls the descriptor.
 * Usage: echo_client HOST PORT BYTES */
#include <errno.h>
#include <poll.h>
#include <raas.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, raas_error());
  return 1;
}

static unsigned char byte_at(unsigned long place) { return (unsigned char)(place * 31 + (place >> 8)); }

int main(int argc, char **argv) {
  raas_target to;
  static unsigned char out[64 * 1024], in[64 * 1024];
  if (argc < 4) {
    fprintf(stderr, "usage: %s HOST PORT BYTES\n", argv[0]);
    return 2;
  }
  unsigned long total = strtoul(argv[3], NULL, 10), sent = 0, received = 0;
  if (raas_target_set(&to, argv[1], (uint16_t)atoi(argv[2])) < 0) return fail("raas_target_set");
  int fd = raas_connect(&to, RAAS_RC | RAAS_WRITE);
  if (fd < 0) return fail("raas_connect");
  int open = 1, ended = 0;
  while (open) {
    int stuck = 1;
    if (sent == total && !ended) {
      if (raas_shutdown(fd, SHUT_WR) < 0) return fail("raas_shutdown");
      ended = 1;
    }
    if (sent < total) {
      uint32_t len = total - sent < sizeof out ? (uint32_t)(total - sent) : (uint32_t)sizeof out;
      for (uint32_t i = 0; i < len; i++) out[i] = byte_at(sent + i);
      uint32_t count = raas_send(fd, out, len, 0);
      if (count == RAAS_FAILED && errno != EAGAIN) return fail("raas_send");
      if (count != RAAS_FAILED) {
        sent += count;
        stuck = 0;
      }
    }
    uint32_t count = raas_recv(fd, in, sizeof in, 0);
    if (count == RAAS_FAILED && errno != EAGAIN) return fail("raas_recv");
    if (count == 0) open = 0;
    if (count != RAAS_FAILED) {
      stuck = 0;
      for (uint32_t i = 0; i < count; i++, received++) {
        if (in[i] != byte_at(received)) {
          fprintf(stderr, "byte %lu is %u, and not %u\n", received, in[i], byte_at(received));
          return 1;
        }
      }
    }
    if (stuck) {
      /* POLLIN stands for both directions: bytes, or room after a send that found none. */
      struct pollfd ready = {fd, POLLIN, 0};
      if (poll(&ready, 1, -1) < 0 && errno != EINTR) return perror("poll"), 1;
    }
  }
  if (received != total) return fprintf(stderr, "%lu bytes came back of %lu\n", received, total), 1;
  printf("%lu bytes came back\n", received);
  return raas_close(fd) < 0 ? fail("raas_close") : 0;
}
