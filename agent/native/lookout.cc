// The look at blocked proxies' rings, and when nobody has to look.
#include "lookout.h"

#include <chrono>
#include <string>
#include <system_error>

#include "error.h"

namespace epfabric::agent {

Lookout::Lookout() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw NativeError(std::string("the lookout's thread cannot be started (") + error.what() +
                      "): raise the agent's limit of processes (pids)");
  }
}

Lookout::~Lookout() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Lookout::watch(const Watched& one) {
  const std::lock_guard lock(mutex_);
  watched_.push_back(&one);
}

void Lookout::forget(const Watched& one) {
  const std::lock_guard lock(mutex_);
  std::erase(watched_, &one);
}

// Whoever blocks has stored that before it loads attends_ here, and run() stores attends_ before it
// looks once more whether one blocks. In the one order of these four (all of them sequentially
// consistent) a store is first, and the other side's load sees it: either the one that blocks asks,
// under the lock that run() holds whenever it does not wait, or run() does not rest.
void Lookout::attend() {
  if (attends_.load(std::memory_order_seq_cst)) return;  // partner: run()
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  changed_.notify_one();
}

void Lookout::run() {
  ::pthread_setname_np(::pthread_self(), "epf-lookout");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    attends_.store(true, std::memory_order_seq_cst);
    asked_ = false;
    if (look()) {
      changed_.wait_for(lock, std::chrono::nanoseconds(kLookNs), [this] { return stop_; });
      continue;
    }
    attends_.store(false, std::memory_order_seq_cst);  // partner: attend()
    if (!look()) changed_.wait(lock, [this] { return stop_ || asked_; });
  }
}

// False where none is blocked.
bool Lookout::look() {
  looks_.add(1);
  bool any = false;
  for (const Watched* one : watched_) {
    const Seen seen = one->wake_for_commands();
    any = any || seen != Seen::kAwake;
    if (seen == Seen::kWoken) wakes_.add(1);
  }
  return any;
}

}  // namespace epfabric::agent
