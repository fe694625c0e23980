// One descriptor to wait on in place of several endpoints'. Used by standby_endpoint.h and
// striped_endpoint.h.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <deque>

#include "endpoint.h"
#include "memory.h"

namespace epfabric::agent {

class WaitTogether {
 public:
  WaitTogether() { fds_.fill(-1); }

  // That of `lines` that are in `among` (bits); kNoWaitFd or kPollFirst where one of them says so.
  template <class E>
  int fd(std::deque<E>& lines, uint32_t among) {
    int out = 0;
    for (uint32_t line = 0; line < lines.size(); ++line) {
      if ((among >> line & 1) == 0) {
        forget(line);
        continue;
      }
      const int fd = lines[line].wait_fd();
      if (fd == kPollFirst) {
        out = kPollFirst;
      } else if (out != kPollFirst && (fd == kNoWaitFd || !watch(line, fd))) {
        out = kNoWaitFd;
      }
    }
    return out < 0 ? out : all_.get();
  }

 private:
  bool watch(uint32_t line, int fd) {
    if (all_.get() < 0) all_ = FileDescriptor(::epoll_create1(EPOLL_CLOEXEC));
    if (fds_[line] == fd) return true;
    epoll_event wanted{};
    wanted.events = EPOLLIN;
    if (::epoll_ctl(all_.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) return false;
    fds_[line] = fd;
    return true;
  }
  void forget(uint32_t line) {
    if (fds_[line] < 0) return;
    ::epoll_ctl(all_.get(), EPOLL_CTL_DEL, fds_[line], nullptr);
    fds_[line] = -1;
  }

  FileDescriptor all_;
  std::array<int, kMaxLines> fds_;  // by line: what is watched, or -1
};

}  // namespace epfabric::agent
