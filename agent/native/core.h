// The native core of an agent process: its fabric, sessions, epochs, events. The only class that
// module.cc drives. Calls may come from several Python threads; each blocks for a bounded time.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "session.h"

namespace epfabric::agent {

struct CoreSettings {
  std::string address;
  std::string provider;  // empty: same node only
  uint32_t drain_batch = 32;
  Limits limits;
  std::string idle = "adaptive";
  int histogram_scale = 5;
  uint64_t connect_timeout_ns = 10'000'000'000;
  std::vector<VerbsPort> ports{};     // of verbs, without a `provider`, or EFA's devices
  bool adaptive = false;              // caps below the limits follow the completions' latency
  uint32_t packing = Joining::kMost;  // WRITEs in a message to one destination, at most
  bool early_pop = true;              // what is there goes at once while few are under way
  bool gated = false;    // the protocol for networks without order, whatever the provider keeps
  uint32_t stripes = 1;  // ports over which a proxy's writes go, where above 1; else one
  std::string selection = "leastInflight";  // of these, or "roundRobin"
  std::string atomics = "auto";             // or "hardware", "emulated"
};

struct RemoteRank {
  uint32_t rank;
  uint32_t node;
  std::vector<std::byte> blob;
};

class Core {
 public:
  explicit Core(const CoreSettings& settings);
  ~Core();

  std::shared_ptr<Session> open_session(const SessionSettings& settings);
  void open_epoch(const EpochPlan& plan, const std::vector<std::shared_ptr<Session>>& local,
                  const std::vector<RemoteRank>& remote);
  void start_epoch(uint64_t group);
  void fail_epoch(uint64_t group, const std::string& reason);
  void rank_left(uint64_t group, uint32_t rank);
  // These ranks are lost. Returns when no proxy here writes to them any more and what was under way
  // counts as complete; their own sessions here write no more either.
  void mask_ranks(uint64_t group, const std::vector<uint32_t>& ranks);
  // Every node has masked these ranks: barriers go on without them.
  void exclude_ranks(uint64_t group, const std::vector<uint32_t>& ranks);
  std::vector<uint32_t> absent(uint64_t group, uint64_t barrier) const;
  void close_epoch(uint64_t group);
  // Who applies the epoch's ATOMICs, and why.
  std::string atomics(uint64_t group) const;
  std::string failure(uint64_t group) const;
  std::vector<std::shared_ptr<Session>> sessions() const;
  std::shared_ptr<BarrierStats> barrier_stats(uint64_t group) const;
  void forget_group(uint64_t group);
  // From now on, for all groups that are led here.
  void keep_barriers(double ratio, uint64_t slow_ns) { keep_->set(ratio, slow_ns); }
  void close();
  Events& events() { return events_; }
  // Descriptors that are readable when a port of `ports` went down, came up or got other GIDs, and
  // what it was. By one thread.
  std::vector<int> port_fds() const;
  std::vector<std::string> port_news();
  // What `ports`' devices have in all, and what is taken of them here.
  const NicLimits& nic_limits() const { return nics_->limits(); }
  NicUses nic_uses() const { return nics_->uses(); }

 private:
  std::shared_ptr<Epoch> find(uint64_t group) const;
  std::shared_ptr<Epoch> require(uint64_t group) const;
  void remove(const std::shared_ptr<Epoch>& epoch);
  void end(const std::shared_ptr<Epoch>& epoch);
  std::shared_ptr<Epoch> make_epoch(const EpochPlan& plan,
                                    const std::vector<std::shared_ptr<Session>>& local,
                                    const std::vector<RemoteRank>& remote);
  void watch_ports();
  std::vector<uint32_t> places_of(const SessionSettings& settings) const;
  ProxySettings settings_of(const SessionSettings& settings) const;
  NicShares take_endpoints(const SessionSettings& settings, const ProxySettings& proxies) const;
  bool links_may_stay(const SessionSettings& settings, const ProxySettings& proxies) const;
  void take_links(const Epoch& epoch) const;
  void connect(const Epoch& epoch);
  void require_open() const;

  const CoreSettings settings_;
  std::deque<Fabric> fabrics_;  // one, or each of EFA's devices; none for verbs
  std::vector<std::unique_ptr<VerbsDevice>> watched_;  // by port
  std::shared_ptr<NicLedger> nics_;
  ProxySettings proxy_settings_;
  const std::shared_ptr<KeepRule> keep_ = std::make_shared<KeepRule>();
  Events events_;
  mutable std::mutex mutex_;  // the four below; never held while waiting for a proxy
  std::vector<std::weak_ptr<Session>> sessions_;
  std::map<uint64_t, std::shared_ptr<Epoch>> epochs_;           // by group
  std::map<uint64_t, std::shared_ptr<BarrierStats>> barriers_;  // by group
  bool closed_ = false;
};

}  // namespace epfabric::agent
