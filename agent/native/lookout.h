// One thread of an agent that looks at the rings of its blocked proxies and wakes those that have
// commands. A pod's stores wake nobody, so somebody has to look now and then; this way it is one
// timer for all proxies, and none on their cores. Made by Core, known to each Proxy.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "counters.h"

namespace epfabric::agent {

// What a proxy was doing when it was looked at.
enum class Seen : uint8_t { kAwake, kBlocked, kWoken };

// What is looked at: a proxy.
class Watched {
 public:
  // Wakes it where it is blocked and has a command.
  virtual Seen wake_for_commands() const = 0;

 protected:
  ~Watched() = default;
};

class Lookout {
 public:
  Lookout();  // throws NativeError
  ~Lookout();
  Lookout(const Lookout&) = delete;

  // `one` is looked at from now on, until forget() has returned.
  void watch(const Watched& one);
  void forget(const Watched& one);
  // By one that is about to block, and has said so.
  void attend();

  bool attends() const { return attends_.load(std::memory_order_relaxed); }
  size_t watched() {
    const std::lock_guard lock(mutex_);
    return watched_.size();
  }
  pthread_t thread() { return thread_.native_handle(); }
  uint64_t looks() const { return looks_.get(); }
  uint64_t wakes() const { return wakes_.get(); }

  // With the wake-up a command is taken about as late as by a proxy that looks itself every 2 ms.
  static constexpr uint64_t kLookNs = 1'800'000;

 private:
  void run();
  bool look();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<const Watched*> watched_;
  bool stop_ = false;
  bool asked_ = false;
  std::atomic<bool> attends_{false};
  Count looks_, wakes_;
  std::thread thread_;
};

}  // namespace epfabric::agent
