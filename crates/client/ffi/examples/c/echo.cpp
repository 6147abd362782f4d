// The echo client and server with the names and overloads of the paper's Figure 4.
// Usage: echo serve HOST PORT   serves one connection (PORT 0: any free one, which it prints)
//        echo ask HOST PORT BYTES
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <raas.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/socket.h>

static int ok(int fd, const char *what) {
  if (fd < 0) throw std::runtime_error(std::string(what) + ": " + raas::error());
  return fd;
}

static uint32_t bytes(uint32_t count, const char *what) {
  if (count == RAAS_FAILED) throw std::runtime_error(std::string(what) + ": " + raas::error());
  return count;
}

static void send_all(int fd, const char *from, uint32_t len) {
  for (uint32_t done = 0; done < len;) done += bytes(raas::send(fd, from + done, len - done, RAAS_WAIT), "send");
}

static void serve(raas::Target at) {
  int listener = ok(raas::listen(&at), "listen");
  char text[56];
  ok(raas_local(listener, &at), "local");
  ok(raas_target_text(&at, text, sizeof text), "text");
  std::printf("listening on %s\n", text);
  std::fflush(stdout);
  std::vector<char> memory(64 * 1024);
  int fd = ok(raas::accept(listener, memory.data(), memory.size(), RAAS_RC), "accept");
  void *place = nullptr;
  while (uint32_t got = bytes(raas::recv_zero_copy(fd, &place, 0), "recv_zero_copy")) {
    send_all(fd, static_cast<char *>(place), got);
    place = nullptr;
  }
  ok(raas::close(fd), "close");
  ok(raas::close(listener), "close");
}

static void ask(raas::Target to, unsigned long total) {
  int fd = ok(raas::connect(&to), "connect");
  std::vector<char> out(4096), in(4096);
  for (unsigned long done = 0; done < total;) {
    uint32_t len = total - done < out.size() ? total - done : out.size();
    for (uint32_t i = 0; i < len; i++) out[i] = static_cast<char>((done + i) * 7);
    send_all(fd, out.data(), len);
    for (uint32_t got = 0; got < len;) got += bytes(raas::recv(fd, in.data() + got, len - got, RAAS_WAIT), "recv");
    if (std::memcmp(in.data(), out.data(), len) != 0) throw std::runtime_error("other bytes came back");
    done += len;
  }
  ok(raas::shutdown(fd, SHUT_WR), "shutdown");
  if (bytes(raas::recv(fd, in.data(), in.size(), RAAS_WAIT), "recv") != 0) throw std::runtime_error("more came back");
  ok(raas::close(fd), "close");
  std::printf("%lu bytes came back\n", total);
}

int main(int argc, char **argv) try {
  if (argc < 4) return std::fprintf(stderr, "usage: %s serve|ask HOST PORT [BYTES]\n", argv[0]), 2;
  raas::Target t;
  ok(raas_target_set(&t, argv[2], static_cast<uint16_t>(std::atoi(argv[3]))), "target");
  if (std::strcmp(argv[1], "serve") == 0) serve(t);
  else ask(t, argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 1000);
  return 0;
} catch (const std::exception &e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
