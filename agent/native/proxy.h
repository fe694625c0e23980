// A proxy thread and what others may ask of it: it serves some rings of one session, alone on its
// core. The thread runs the loop of loop.h, over the transport that was chosen when it started.
// Made by Session.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "epoch.h"
#include "fabric.h"
#include "idle.h"
#include "link.h"
#include "lookout.h"
#include "nic_ledger.h"
#include "ring.h"
#include "stripes.h"
#include "verbs_device.h"

namespace epfabric::agent {

class Proxy;

struct ProxySettings {
  uint32_t drain_batch = 32;
  IdleMode idle = IdleMode::kAdaptive;
  Limits limits;
  AtomicsWish atomics = AtomicsWish::kAuto;
  uint64_t connections = DeviceLimits::kNone;  // that there is room for
  std::shared_ptr<NicShare> share;             // a proxy's own of NICs; nullptr: it has none
  std::vector<const Fabric*> fabrics;          // proxy i's is at i modulo spread()
  std::shared_ptr<Lookout> lookout;  // without one blocked proxies look at their rings themselves
  std::vector<VerbsPort> ports;      // proxy i's own is at i modulo spread(), the next stands by,
  uint32_t used = 0;     // of either, the first so many; the others only stand by; 0: all
  uint32_t stripes = 1;  // or it stripes over up to so many of them, where above 1,
  Selection selection = Selection::kLeastInflight;  // so
  uint32_t spread() const {
    const auto all = static_cast<uint32_t>(std::max(ports.size(), fabrics.size()));
    return used > 0 ? std::min(used, all) : all;
  }
  const char* network() const {
    if (!ports.empty()) return "verbs";
    return fabrics.empty() ? "none" : "libfabric";
  }
  // What a proxy's thread runs in place of the loop over a network: calls Proxy::started(), then a
  // Loop over a transport of its own (benches).
  std::function<void(Proxy&)> serve;
};

// Something that only the proxy's own thread may do.
struct Request {
  enum class Kind : uint8_t { kAddRegion, kOpenEpoch } kind = Kind::kAddRegion;
  const Region* region = nullptr;
  std::shared_ptr<Epoch> epoch;
  RemoteKey key;      // answer
  std::string error;  // answer; empty = done
};

class Proxy final : public Watched {
 public:
  // Starts the thread and waits for its endpoint. `rings` are the session's; this proxy serves
  // those with index % proxies == index. Throws NativeError.
  Proxy(uint32_t index, uint32_t proxies, int cpu, const ProxySettings& settings,
        const Segments& segments, const std::vector<Region>& regions,
        std::vector<std::unique_ptr<Ring>>& rings);
  ~Proxy();

  // Pins the thread to another CPU; kAnyCpu: to none. Throws NativeError.
  void move(int cpu);
  // Runs `request` on the thread. Throws NativeError when it fails or takes longer than the bound.
  void run(Request& request, uint64_t timeout_ns = 5'000'000'000);
  // By the thread itself, once it can take requests.
  void started();
  // Asks the thread to end; join() waits. After that no memory of the session is touched.
  void ask_stop();
  bool join(uint64_t timeout_ns);

  // Waits until the thread has begun a new turn, so that it has seen what was stored before the
  // call; after two it has also acted on it.
  bool pass(uint64_t timeout_ns, uint64_t turns = 1) const;
  void wake() const;
  Seen wake_for_commands() const override;  // by the lookout, while the thread lives

  // Odd from a turn's begin on, until one ends that found no completion.
  uint64_t settle_mark() const { return settle_.load(std::memory_order_acquire); }
  // Completions that were handled, and how many may be waiting or in hand at once.
  uint64_t handled() const { return handled_.load(std::memory_order_acquire); }
  uint64_t most_waiting() const { return most_waiting_.load(std::memory_order_acquire); }
  // Links with writes that their peer has not acknowledged; ask_delivery() makes the thread ask.
  uint64_t undelivered() const { return undelivered_.load(std::memory_order_acquire); }
  void ask_delivery() { deliver_.store(true, std::memory_order_relaxed); }
  // Links that are not connected yet; kUnknown before the thread looked.
  static constexpr uint64_t kUnknown = ~uint64_t{0};
  uint64_t unconnected() const { return unconnected_.load(std::memory_order_acquire); }
  std::string unreachable() const;

  uint32_t index() const { return index_; }
  int cpu() const { return cpu_.load(std::memory_order_relaxed); }
  std::vector<std::byte> address() const;
  RemoteKey mailbox() const { return mailbox_; }
  // As far as regions are registered now; ordered by the requests that register them.
  AtomicsAbility ability() const { return ability_.load(std::memory_order_relaxed); }
  NicShare* share() const { return settings_.share.get(); }
  const ProxyCount& count() const { return count_; }
  const std::vector<DestinationCount>& destinations() const { return destinations_; }

  // A blocked proxy looks again by itself: where nobody else looks at its rings and queue, and
  // where others would wake it.
  static constexpr uint64_t kLookNs = 2'000'000;
  static constexpr uint64_t kWatchedNs = 30'000'000;

 private:
  template <class Remote>
  friend class Loop;

  static constexpr uint64_t kSettledForEver = ~uint64_t{1};  // even, and beyond every mark
  static constexpr uint64_t kBeatNs = 10'000'000;

  void main();
  void serve_remote();
  template <class Remote, class Network>
  void serve(const Network& network);
  void pin();
  void end();
  Request* take_request();
  void answer();
  void beat();  // of the session, which is proxy 0's
  // Whether it was woken.
  bool block(uint64_t at_most_ns, int queue_fd);

  const uint32_t index_;
  const uint32_t proxies_;
  std::atomic<int> cpu_;
  const ProxySettings settings_;
  const Segments& segments_;
  const std::vector<Region>& regions_;
  std::vector<std::unique_ptr<Ring>>& rings_;
  FileDescriptor wake_fd_;

  RemoteKey mailbox_;
  std::atomic<AtomicsAbility> ability_{AtomicsAbility::kUnable};
  ProxyCount count_;
  std::vector<DestinationCount> destinations_;  // by rank

  std::atomic<bool> stop_{false};
  std::atomic<bool> blocked_{false};
  std::atomic<uint64_t> settle_{0};
  std::atomic<uint64_t> handled_{0};
  std::atomic<uint64_t> most_waiting_{0};
  std::atomic<uint64_t> turns_{0};
  std::atomic<uint64_t> undelivered_{0};
  std::atomic<bool> deliver_{false};
  std::atomic<uint64_t> unconnected_{kUnknown};
  std::atomic<uint64_t> heartbeat_{1};

  mutable std::mutex mutex_;  // the eight below but for changed_
  std::condition_variable changed_;
  bool ready_ = false;
  bool ended_ = false;
  std::string start_error_;
  std::string unreachable_;
  std::vector<std::byte> address_;
  Request* request_ = nullptr;
  bool answered_ = false;
  bool taken_ = false;  // the request, by the thread
  std::atomic<bool> asked_{false};
  std::thread thread_;
};

}  // namespace epfabric::agent
