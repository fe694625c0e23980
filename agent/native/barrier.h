// The barrier between nodes: each node's delegate (proxy 0 of the node's first rank; on the
// leader's node, of the leader) tells others when its ranks have met. By the leader algorithm it
// tells the leader, and lets its ranks go when that says so; by dissemination (dissemination.h) it
// tells one node after another, and lets them go when it has heard of all. A state machine without
// threads or network: its proxy gives it the time and a way to send.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "barrier_stats.h"
#include "dissemination.h"
#include "meeting.h"
#include "record.h"
#include "trace.h"

namespace epfabric::agent {

struct BarrierPlan {
  uint32_t epoch = 0;
  uint32_t node = 0;  // own
  uint32_t leader_node = 0;
  uint32_t leader_rank = 0;
  uint64_t timeout_ns = 0;
  std::vector<std::vector<uint32_t>> nodes;  // ranks of each node
  std::vector<uint32_t> delegates;           // rank, by node
  Id128 group{};                             // its uid
  std::shared_ptr<const KeepRule> keep{};    // nullptr: no barrier is kept as a trace
  bool dissemination = false;                // else the leader algorithm
  bool rail = false;                         // along one rail: each "node" is one rank of it
};

// A barrier's entry in the trail, once it was released.
BarrierTimes times_of(const BarrierStamps& stamps, const Id128& group, uint32_t epoch,
                      uint64_t number, bool leads, uint64_t left_ns);

class Delegate {
 public:
  Delegate(const BarrierPlan& plan, Meeting& meeting, BarrierStats& stats);

  // Moves on as far as it can. `send(rank, record)` posts a record or says false (busy);
  // `settled()` is true once every signal that came before the release is published here. True when
  // something moved.
  template <class Send, class Settled>
  bool step(uint64_t now_ns, Send&& send, Settled&& settled);

  // A record from `source` for this delegate; why it is unacceptable, or nullptr.
  const char* on_record(const ControlRecord& record, uint64_t now_ns);

  // That node is waited for no more: all of its ranks are excluded.
  void lose_node(uint32_t node, uint64_t now_ns);

  // True when the barrier has taken too long, and again after each further time-out.
  bool timed_out(uint64_t now_ns);
  // Ranks that are known not to have entered; empty where only the leader can know.
  std::vector<uint32_t> missing() const;
  // For people: what it waits for where every rank of this node has entered.
  std::string waits_for() const;
  const std::vector<std::vector<uint32_t>>& nodes() const { return plan_.nodes; }
  uint32_t node() const { return plan_.node; }
  uint64_t number() const { return number_; }
  // Between ranks entering and their release: the proxy must not block.
  bool busy() const { return meeting_.begun(number_); }

 private:
  enum class State : uint8_t { kGathering, kPosting, kWaiting, kReleasing, kRounds, kSettling };

  struct Node {
    uint64_t arrivals = 0;  // barriers that it arrived at; may be one ahead once it was released
    bool released = false;
    bool gone = false;
    bool present_known = false;
    uint64_t present = 0;
  };

  bool leads() const { return plan_.node == plan_.leader_node; }
  ControlRecord record_of(RecordKind kind, uint32_t destination, uint64_t extra) const;
  uint32_t last_local_rank() const;
  uint64_t waited_ns(uint64_t now_ns) const;
  bool gathered(uint64_t now_ns);
  void arrived(uint32_t node, const Arrival& arrival, uint64_t now_ns);
  bool complete() const { return arrived_ >= needed_; }
  // A node whose ranks are all excluded has a part only as a leader of others.
  bool goes_on_without_ranks() const { return leads() && !plan_.dissemination && needed_ > 1; }
  void forget_lost();
  void collected(uint32_t last_rank, uint64_t now_ns);
  void record_unleft();
  void keep_without_ranks(uint64_t number, uint64_t now_ns);
  template <class Send>
  bool post_releases(Send&& send);
  template <class Send>
  bool post_rounds(uint64_t now_ns, Send&& send);
  template <class Send>
  bool post_present(uint64_t now_ns, Send&& send);
  template <class Send>
  bool post_asks(uint64_t now_ns, Send&& send);
  bool late(uint64_t now_ns) const;
  void heard_of_all();
  const char* on_release(const ControlRecord& record, uint64_t now_ns);
  const char* on_round(uint32_t node, const ControlRecord& record, uint64_t now_ns);
  const char* on_present(uint32_t node, const ControlRecord& record, uint64_t now_ns);
  const char* on_ask(const ControlRecord& record);
  uint64_t begin_ns() const;
  const char* on_arrival(uint32_t node, const ControlRecord& record, uint64_t now_ns);
  void next(uint64_t now_ns);

  const BarrierPlan plan_;
  Meeting& meeting_;
  BarrierStats& stats_;
  std::vector<uint32_t> node_of_;  // by rank: the node that it is delegate of, or kNoNode
  std::vector<Node> nodes_;
  Dissemination rounds_;
  State state_ = State::kGathering;
  uint64_t number_ = 0;
  uint64_t looked_back_ = 0;      // the last barrier at which record_unleft() looked
  uint32_t needed_ = 0;           // nodes
  uint32_t arrived_ = 0;          // nodes
  uint32_t early_ = 0;            // nodes that arrived at the next one already
  uint64_t remote_began_ns_ = 0;  // leader: the first rank elsewhere arrived, as far as is known
  uint64_t early_began_ns_ = 0;   // the same of the next barrier
  uint64_t posted_ns_ = 0;
  uint64_t network_ns_ = 0;  // release received, or all nodes arrived
  uint64_t began_ns_ = 0;    // the group's first rank arrived, as far as is known here
  uint32_t last_rank_ = 0;
  bool kept_ = false;
  bool release_seen_ = false;
  bool rounds_begun_ = false;
  uint64_t present_ = 0;   // what the leader was told last; 0 = nothing
  uint64_t asked_ = 0;     // barriers of which the leader wants to know who is there
  uint32_t ask_next_ = 0;  // leader: the next node to be asked
  uint64_t expired_ = 0;   // time-outs of this barrier
};

template <class Send, class Settled>
bool Delegate::step(uint64_t now_ns, Send&& send, Settled&& settled) {
  const bool told = plan_.dissemination && post_rounds(now_ns, send);
  switch (state_) {
    case State::kGathering:
      if (!meeting_.full(number_))
        return post_present(now_ns, send) || post_asks(now_ns, send) || told;
      return gathered(now_ns) || told;
    case State::kRounds:
      if (!rounds_.complete()) return post_present(now_ns, send) || post_asks(now_ns, send) || told;
      heard_of_all();
      state_ = State::kSettling;
      return true;
    case State::kPosting: {
      const uint64_t extra = pack_arrival({last_rank_, waited_ns(now_ns)});
      const auto record = record_of(RecordKind::kArrive, plan_.leader_rank, extra);
      if (!send(plan_.leader_rank, record)) return false;
      posted_ns_ = now_ns;
      stats_.record(Phase::kLocal, meeting_.stamps(number_).entered_ns, now_ns);
      state_ = State::kWaiting;
      return true;
    }
    case State::kWaiting:
      if (leads() ? !complete() : !release_seen_) return false;
      stats_.record(Phase::kNetwork, posted_ns_, network_ns_);
      state_ = leads() ? State::kReleasing : State::kSettling;
      return true;
    case State::kReleasing:
      if (!post_releases(send)) return false;
      state_ = State::kSettling;
      return true;
    case State::kSettling:
      if (!settled()) return false;
      next(now_ns);
      return true;
  }
  return false;
}

template <class Send>
bool Delegate::post_releases(Send&& send) {
  bool all = true;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    if (node == plan_.node || nodes_[node].released || nodes_[node].gone) continue;
    const uint32_t rank = plan_.delegates[node];
    nodes_[node].released = send(rank, record_of(RecordKind::kRelease, rank, kept_ ? 1 : 0));
    all = all && nodes_[node].released;
  }
  return all;
}

template <class Send>
bool Delegate::post_rounds(uint64_t now_ns, Send&& send) {
  bool moved = false;
  for (const Dissemination::Message* due = rounds_.due(); due != nullptr; due = rounds_.due()) {
    const uint32_t rank = plan_.delegates[due->node];
    ControlRecord record = record_of(RecordKind::kRound, rank, pack_round(due->round));
    record.value = due->number;
    if (!send(rank, record)) return moved;
    if (due->number == number_ && !rounds_begun_) {
      rounds_begun_ = true;
      posted_ns_ = now_ns;
      stats_.record(Phase::kLocal, meeting_.stamps(number_).entered_ns, now_ns);
    }
    rounds_.sent();
    moved = true;
  }
  return moved;
}

// Half the time is over, or the leader asks: tells it which ranks are here, when that changes.
template <class Send>
bool Delegate::post_present(uint64_t now_ns, Send&& send) {
  if (leads() || meeting_.members() > 64) return false;
  if (asked_ <= number_ && !late(now_ns)) return false;
  uint64_t mask = 0;
  for (uint32_t i = 0; i < meeting_.members(); ++i) {
    if (meeting_.has_entered(number_, i)) mask |= uint64_t{1} << i;
  }
  if (mask == present_) return false;
  if (!send(plan_.leader_rank, record_of(RecordKind::kPresent, plan_.leader_rank, mask)))
    return false;
  present_ = mask;
  return true;
}

// By dissemination the leader knows of nobody: it asks all nodes when half the time is over.
template <class Send>
bool Delegate::post_asks(uint64_t now_ns, Send&& send) {
  if (!plan_.dissemination || !leads() || ask_next_ == nodes_.size() || !late(now_ns)) return false;
  for (; ask_next_ < nodes_.size(); ++ask_next_) {
    if (ask_next_ == plan_.node || nodes_[ask_next_].gone) continue;
    const uint32_t rank = plan_.delegates[ask_next_];
    if (!send(rank, record_of(RecordKind::kAsk, rank, 0))) return false;
  }
  return true;
}

}  // namespace epfabric::agent
