// What the core tells Python unasked: a queue with an eventfd. Written by proxies (rarely), read by
// Core.
#pragma once

#include <sys/eventfd.h>

#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "memory.h"

namespace epfabric::agent {

struct Event {
  std::string kind;  // "failed", "lost", "moved" or "barrier_timeout"
  uint64_t group = 0;
  int rank = -1;                // whom `detail` is about, or -1
  std::vector<uint32_t> ranks;  // that are lost
  std::string detail;
  uint64_t barrier = 0;  // number of the one that timed out
};

class Events {
 public:
  Events() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_.get() < 0) throw system_error("eventfd failed");
  }

  void push(Event event) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(event));
    const uint64_t one = 1;
    (void)!::write(fd_.get(), &one, sizeof(one));
  }

  std::vector<Event> take() {
    const std::lock_guard lock(mutex_);
    uint64_t ignored = 0;
    (void)!::read(fd_.get(), &ignored, sizeof(ignored));
    std::vector<Event> out(std::make_move_iterator(queue_.begin()),
                           std::make_move_iterator(queue_.end()));
    queue_.clear();
    return out;
  }

  int fd() const { return fd_.get(); }

 private:
  FileDescriptor fd_;
  std::mutex mutex_;
  std::deque<Event> queue_;
};

}  // namespace epfabric::agent
