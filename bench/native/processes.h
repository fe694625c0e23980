// Two processes of a bench program and the socket between them. Forked before either has a thread;
// both end when their bound passes, the child also when its parent is gone.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace epfabric::bench {

[[noreturn]] inline void give_up(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  ::_exit(1);
}

class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  int fd() const { return fd_; }

  void send(std::span<const std::byte> bytes) const {
    if (::send(fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      give_up("the other process is gone");
  }
  std::vector<std::byte> receive() const {
    std::vector<std::byte> out(1 << 16);
    const ssize_t got = ::recv(fd_, out.data(), out.size(), 0);
    if (got <= 0) give_up("the other process is gone");
    out.resize(static_cast<size_t>(got));
    return out;
  }
  void tell(uint64_t value) const { send(std::as_bytes(std::span(&value, 1))); }
  // False when nothing is there yet.
  bool told(uint64_t& value) const {
    const ssize_t got = ::recv(fd_, &value, sizeof(value), MSG_DONTWAIT);
    if (got == 0) give_up("the other process is gone");
    return got == sizeof(value);
  }

 private:
  int fd_;
};

// The child's pid, or 0 in the child; `wire` leads to the other one.
inline pid_t fork_with(int& wire, unsigned seconds) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) give_up("socketpair failed");
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) give_up("fork failed");
  ::alarm(seconds);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
  }
  wire = ends[child == 0 ? 1 : 0];
  ::close(ends[child == 0 ? 0 : 1]);
  return child;
}

// Waits for a child; whether it ended well.
inline bool ended_well(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace epfabric::bench
