// Address handles of peers that an endpoint may need later, made by a thread beside its proxy's:
// for a peer that does not answer the kernel looks for a second. Used by verbs_endpoint.h.
#pragma once

#include <pthread.h>

#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "endpoint.h"
#include "ibverbs.h"

namespace epfabric::agent {

class VerbsHandles {
 public:
  explicit VerbsHandles(ibv_pd* domain) : domain_(domain) {}
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
      thread_ = std::thread([this] { make(); });
      runs_ = true;
    } catch (const std::system_error&) {
    }
  }
  // Nothing while it is looked for, and where there is no way.
  AddressHandle take(PeerIndex peer) {
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
    AddressHandle handle;
    bool failed = false;
  };

  void make() {
    ::pthread_setname_np(::pthread_self(), "epf-handles");
    std::unique_lock lock(mutex_);
    while (!wanted_.empty()) {
      auto [peer, route] = wanted_.front();
      wanted_.pop_front();
      lock.unlock();
      AddressHandle handle(ibverbs().create_ah(domain_, &route));
      lock.lock();
      Found& found = found_[peer];
      found.failed = !handle;
      found.handle = std::move(handle);
    }
    runs_ = false;
  }

  ibv_pd* const domain_;
  mutable std::mutex mutex_;  // these below but for thread_
  std::deque<std::pair<PeerIndex, ibv_ah_attr>> wanted_;
  std::map<PeerIndex, Found> found_;
  bool runs_ = false;
  std::thread thread_;
};

}  // namespace epfabric::agent
