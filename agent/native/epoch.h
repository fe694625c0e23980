// One epoch of one group on this node: who is where, what may be written, who left, whether it
// failed, and the barrier's meeting place. Built by Core::open_epoch(), shared by the proxies of
// the group's local sessions.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "barrier.h"
#include "blob.h"
#include "budget.h"
#include "events.h"
#include "loopback_transport.h"

namespace epfabric::agent {

class Proxy;
class Session;

struct EpochPlan {
  uint64_t group = 0;
  uint32_t epoch = 0;
  uint32_t leader_rank = 0;
  uint64_t barrier_timeout_ns = 0;
  std::vector<std::vector<uint32_t>> nodes;
  bool mask = false;  // a lost rank is reported and the epoch goes on; else it fails
  Id128 uid{};        // the group's; the same on every node
  std::shared_ptr<const KeepRule> keep{};  // which barriers are kept as traces
  bool dissemination = false;              // the barrier between nodes; else a leader collects
};

class Epoch {
 public:
  // `local`: this node's sessions; `blobs`: every rank's, by rank. Throws NativeError where they do
  // not fit together.
  Epoch(const EpochPlan& plan, std::vector<std::shared_ptr<Session>> local,
        std::vector<SessionBlob> blobs, std::shared_ptr<BarrierStats> stats, Events& events);
  Epoch(const Epoch&) = delete;

  const EpochPlan& plan() const { return plan_; }
  uint32_t world() const { return static_cast<uint32_t>(node_of_.size()); }
  uint32_t node_of(uint32_t rank) const { return node_of_[rank]; }
  uint32_t node() const { return node_; }
  bool local(uint32_t rank) const { return node_of_[rank] == node_; }
  uint32_t proxies_of(uint32_t rank) const { return proxies_[rank]; }
  const std::vector<uint32_t>& proxies_by_rank() const { return proxies_; }
  Census census() const { return {node_of_, proxies_}; }
  // Connections of a local rank's proxy.
  uint64_t links(const Census& census, uint32_t rank, uint32_t proxy) const {
    return census.links(rank, proxy) + (atomics_.by_nic ? census.neighbours(rank, proxy) : 0);
  }
  const SessionBlob& blob(uint32_t rank) const { return blobs_[rank]; }
  const AtomicsChoice& atomics() const { return atomics_; }
  std::span<const LocalTarget> targets() const { return targets_; }
  // Of every local session; they live as long as the epoch.
  const std::vector<const Proxy*>& proxies() const { return local_proxies_; }
  SessionView view(uint32_t rank, uint32_t signals) const;

  // The barrier.
  Meeting& meeting() { return *meeting_; }
  BarrierStats& stats() { return *stats_; }
  uint32_t position_of(uint32_t rank) const;
  uint32_t delegate_of(uint32_t node) const;
  BarrierPlan barrier_plan() const;
  // Of the ranks that have this position on their nodes.
  BarrierPlan rail_plan(uint32_t position) const;
  // The last local rank has left it; before any of them is released from the next.
  void barrier_left(uint64_t number, uint64_t now_ns);

  void start() { started_.store(true, std::memory_order_release); }
  void stop() { started_.store(false, std::memory_order_release); }
  bool running() const {
    return started_.load(std::memory_order_acquire) && !failed_.load(std::memory_order_acquire);
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::string failure() const;

  void leave(uint32_t rank);
  // Partner: leave(), mask(). Sequentially consistent, with Proxy::pass(): a turn that begins after
  // the rank left sees that it did.
  uint8_t state(uint32_t rank) const { return states_[rank].load(std::memory_order_seq_cst); }
  bool left(uint32_t rank) const { return state(rank) == kLeft; }
  bool masked(uint32_t rank) const { return state(rank) >= kMasked; }
  bool gone(uint32_t rank) const { return state(rank) != kPresent; }

  // The ranks are lost (idempotent): every local session's mask shows them, and theirs here end.
  // Proxies take note in their next turn. A rank that had left stays so.
  void mask(const std::vector<uint32_t>& ranks);
  // Barriers wait for these masked ranks no more; their proxies have taken note.
  void exclude(const std::vector<uint32_t>& ranks);
  // Grows with each mask() and exclude(); partner: Loop::turn().
  uint64_t changes() const { return changes_.load(std::memory_order_seq_cst); }
  // Local ranks that are neither masked nor in barrier `number`.
  std::vector<uint32_t> absent(uint64_t number) const;
  // The session of a masked rank still serves the barrier as this node's delegate.
  bool needs(uint32_t rank) const {
    return running() && masked(rank) && local(rank) &&
           (delegate_of(node_) == rank || (leads_rails() && plan_.nodes.size() > 1));
  }
  void report(Event event) { events_.push(std::move(event)); }

  // The epoch is over: sets the abort word of every local session, once. The first reason stands;
  // an event tells Python unless `quiet`.
  void fail(Event event, bool quiet = false);
  // The session takes part: fail() sets its abort word, at once if the epoch has failed already.
  void reach(Session* session);
  // The session's memory is about to go: fail() no longer touches it.
  void forget(const Session* session);
  const std::vector<std::shared_ptr<Session>>& sessions() const { return sessions_; }

 private:
  // A leader's part goes on without its rank; by dissemination nobody leads.
  bool leads_rails() const { return node_ == node_of_[plan_.leader_rank] && !plan_.dissemination; }
  void place_ranks();
  void place_sessions();
  void choose();

  EpochPlan plan_;
  std::vector<uint32_t> node_of_;  // by rank, as the next six
  std::vector<uint32_t> proxies_;
  std::vector<SessionBlob> blobs_;
  std::vector<std::vector<Extent>> extents_;
  std::vector<std::span<const Extent>> regions_;
  std::vector<std::atomic<uint8_t>> states_;
  std::vector<LocalTarget> targets_;
  std::vector<const Proxy*> local_proxies_;
  AtomicsChoice atomics_;
  uint32_t node_ = 0;
  std::atomic<uint32_t> departed_{0};
  std::atomic<uint64_t> changes_{0};
  std::unique_ptr<Meeting> meeting_;
  std::shared_ptr<BarrierStats> stats_;
  Events& events_;
  std::atomic<bool> started_{false};
  std::atomic<bool> failed_{false};
  std::vector<std::shared_ptr<Session>> sessions_;
  mutable std::mutex mutex_;         // the three below
  std::vector<Session*> reachable_;  // those whose abort word fail() sets
  std::vector<uint64_t> mask_;       // what is in every local session's mask area
  std::string failure_;
};

}  // namespace epfabric::agent
