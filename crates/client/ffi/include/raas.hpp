// libraas for C++: the functions of raas.h under the names and overloads of the RaaS paper's Figure 4.
// Nothing here but names: docs/c.md and raas(3) say what each function does. A failure is -1 and errno, as in C.
#ifndef RAAS_HPP
#define RAAS_HPP

#include "raas.h"

namespace raas {

using Target = raas_target;

inline int connect(const Target *t, int FLAGS = 0) { return raas_connect(t, FLAGS); }
inline int listen(const Target *t, int FLAGS = 0) { return raas_listen(t, FLAGS); }
inline int accept(int fd, int FLAGS = 0) { return raas_accept(fd, FLAGS); }
inline int accept(int fd, void *buf, uint32_t len, int FLAGS = 0) { return raas_accept_buffer(fd, buf, len, FLAGS); }
inline uint32_t send(int fd, const void *buf, uint32_t len, int FLAGS = 0) { return raas_send(fd, buf, len, FLAGS); }
inline uint32_t recv(int fd, void *buf, uint32_t len, int FLAGS = 0) { return raas_recv(fd, buf, len, FLAGS); }
inline uint32_t recv_zero_copy(int fd, void **buf_addr, uint32_t len, int FLAGS = 0) {
  return raas_recv_zero_copy(fd, buf_addr, len, FLAGS);
}
inline uint32_t sendto(int fd, const void *buf, uint32_t len, const Target *t, int FLAGS = 0) {
  return raas_sendto(fd, buf, len, t, FLAGS);
}
inline uint32_t recvfrom(int fd, void *buf, uint32_t len, Target *t, int FLAGS = 0) {
  return raas_recvfrom(fd, buf, len, t, FLAGS);
}
inline uint32_t recvfrom_zero_copy(int fd, void **buf_addr, uint32_t len, int FLAGS = 0) {
  return raas_recvfrom_zero_copy(fd, buf_addr, len, FLAGS);
}
inline int close(int fd) { return raas_close(fd); }
inline int shutdown(int fd, int how) { return raas_shutdown(fd, how); }
inline const char *error() { return raas_error(); }

}  // namespace raas

#endif
