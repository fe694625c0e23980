// Address handles of peers that an endpoint may need later, made by a thread beside its proxy's:
// for a peer that does not answer the kernel looks for a second. Used by verbs_endpoint.h.
#pragma once

#include <infiniband/verbs.h>
#include <pthread.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "endpoint.h"

namespace epfabric::agent {

template <class Handle>
class VerbsHandles {
 public:
  // `make` may take long, and gives nothing where there is no way; called by that thread alone.
  using Make = std::function<Handle(const ibv_ah_attr&)>;
  explicit VerbsHandles(Make make) : make_(std::move(make)) {}
  ~VerbsHandles() {
    {
      const std::lock_guard lock(mutex_);
      wanted_.clear();
    }
    if (thread_.joinable()) thread_.join();
  }
  VerbsHandles(const VerbsHandles&) = delete;

  // Once for each peer; where no thread can be had now, the next call tries again.
  void look(PeerIndex peer, const ibv_ah_attr& route) {
    const std::lock_guard lock(mutex_);
    if (found_.try_emplace(peer).second) wanted_.emplace_back(peer, route);
    if (runs_ || wanted_.empty()) return;
    if (thread_.joinable()) thread_.join();  // it takes the lock no more
    try {
      thread_ = std::thread([this] { find_all(); });
      runs_ = true;
    } catch (const std::system_error&) {
    }
  }
  // Nothing while it is looked for, and where there is no way.
  Handle take(PeerIndex peer) {
    const std::lock_guard lock(mutex_);
    return std::move(found_[peer].handle);
  }
  bool failed(PeerIndex peer) const {
    const std::lock_guard lock(mutex_);
    const auto at = found_.find(peer);
    return at != found_.end() && at->second.failed;
  }

 private:
  struct Found {
    Handle handle;
    bool failed = false;
  };

  void find_all() {
    ::pthread_setname_np(::pthread_self(), "epf-handles");
    std::unique_lock lock(mutex_);
    while (!wanted_.empty()) {
      const auto [peer, route] = wanted_.front();
      wanted_.pop_front();
      lock.unlock();
      Handle handle = make_(route);
      lock.lock();
      Found& found = found_[peer];
      found.failed = !handle;
      found.handle = std::move(handle);
    }
    runs_ = false;
  }

  const Make make_;
  mutable std::mutex mutex_;  // these below but for thread_
  std::deque<std::pair<PeerIndex, ibv_ah_attr>> wanted_;
  std::map<PeerIndex, Found> found_;
  bool runs_ = false;
  std::thread thread_;
};

}  // namespace epfabric::agent
