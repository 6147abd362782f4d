/* Sends back what each connection sends, one connection after the other.
 * Usage: echo_server HOST PORT [CONNECTIONS]   (PORT 0: any free one, which the first line of output names) */
#include <raas.h>
#include <stdio.h>
#include <stdlib.h>

static char memory[256 * 1024];

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, raas_error());
  return 1;
}

static int echo(int fd) {
  for (;;) {
    void *bytes = NULL; /* the memory that came with raas_accept_buffer */
    uint32_t got = raas_recv_zero_copy(fd, &bytes, 0, 0);
    if (got == RAAS_FAILED) return fail("raas_recv_zero_copy");
    if (got == 0) return 0;
    for (uint32_t done = 0; done < got;) {
      uint32_t sent = raas_send(fd, (char *)bytes + done, got - done, RAAS_WAIT);
      if (sent == RAAS_FAILED) return fail("raas_send");
      done += sent;
    }
  }
}

int main(int argc, char **argv) {
  raas_target at;
  char text[56];
  long left = argc > 3 ? atol(argv[3]) : -1;
  if (argc < 3) {
    fprintf(stderr, "usage: %s HOST PORT [CONNECTIONS]\n", argv[0]);
    return 2;
  }
  if (raas_target_set(&at, argv[1], (uint16_t)atoi(argv[2])) < 0) return fail("raas_target_set");
  int listener = raas_listen(&at, RAAS_RC);
  if (listener < 0) return fail("raas_listen");
  if (raas_local(listener, &at) < 0 || raas_target_text(&at, text, sizeof text) < 0) return fail("raas_local");
  printf("listening on %s\n", text);
  fflush(stdout);
  for (; left != 0; left -= left > 0) {
    int fd = raas_accept_buffer(listener, memory, sizeof memory, 0);
    if (fd < 0) return fail("raas_accept_buffer");
    int failed = echo(fd);
    if (raas_close(fd) < 0) return fail("raas_close");
    if (failed) return failed;
  }
  return raas_close(listener) < 0 ? fail("raas_close") : 0;
}
