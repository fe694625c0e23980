// State changes of the barrier's delegate that need no sending, and what it says on a time-out.
#include "barrier.h"

#include <algorithm>

namespace epfabric::agent {
namespace {
constexpr uint32_t kNoNode = ~0u;
}  // namespace

BarrierTimes times_of(const BarrierStamps& stamps, const Id128& group, uint32_t epoch,
                      uint64_t number, bool leads, uint64_t left_ns) {
  const auto get = [](const std::atomic<uint64_t>& word) {
    return word.load(std::memory_order_relaxed);  // ordered by released()
  };
  const Collected& known = stamps.collected;
  return {group,
          number,
          epoch,
          known.last_rank,
          leads,
          known.kept,
          known.began_ns,
          get(stamps.first_ns),
          get(stamps.entered_ns),
          known.posted_ns,
          known.network_ns,
          get(stamps.released_ns),
          left_ns,
          known.alone};
}

Delegate::Delegate(const BarrierPlan& plan, Meeting& meeting, BarrierStats& stats)
    : plan_(plan),
      meeting_(meeting),
      stats_(stats),
      nodes_(plan.nodes.size()),
      rounds_(plan.node, static_cast<uint32_t>(plan.nodes.size())),
      needed_(static_cast<uint32_t>(plan.nodes.size())) {
  for (uint32_t node = 0; node < plan_.delegates.size(); ++node) {
    const uint32_t rank = plan_.delegates[node];
    if (node_of_.size() <= rank) node_of_.resize(rank + 1, kNoNode);
    node_of_[rank] = node;
  }
}

ControlRecord Delegate::record_of(RecordKind kind, uint32_t destination, uint64_t extra) const {
  ControlRecord record;
  record.kind = kind;
  record.source = static_cast<uint16_t>(plan_.delegates[plan_.node]);
  record.destination = static_cast<uint16_t>(destination);
  record.epoch = plan_.epoch;
  record.index = plan_.rail ? kRailScope : kFullScope;
  record.value = number_;
  record.extra = extra;
  return record;
}

uint32_t Delegate::last_local_rank() const {
  const BarrierStamps& stamps = meeting_.stamps(number_);
  return stamps.ranks == 0 ? kNoRank : plan_.nodes[plan_.node][stamps.last_position];
}

// How long the first local rank has been there; its stamp may be a moment later than ours.
uint64_t Delegate::waited_ns(uint64_t now_ns) const {
  const uint64_t first_ns = meeting_.stamps(number_).first_ns;
  return now_ns > first_ns ? now_ns - first_ns : 0;
}

// Whoever would have been the last one to leave the barrier before was lost first. The others have
// left it, since they are in this one; when is not known.
void Delegate::record_unleft() {
  if (looked_back_ == number_) return;
  looked_back_ = number_;
  const BarrierStamps& stamps = meeting_.stamps(number_ - 1);
  if (stamps.leaving.load(std::memory_order_acquire) == 0) return;  // partner: Meeting::leave()
  const uint64_t left_ns = stamps.released_ns.load(std::memory_order_relaxed);
  stats_.finished(times_of(stamps, plan_.group, plan_.epoch, number_ - 1, leads(), left_ns));
}

// All local ranks have entered, or are excluded.
bool Delegate::gathered(uint64_t now_ns) {
  record_unleft();
  const BarrierStamps& stamps = meeting_.stamps(number_);
  const bool ranks = stamps.ranks != 0;
  last_rank_ = last_local_rank();
  began_ns_ = ranks ? stamps.first_ns.load(std::memory_order_relaxed) : now_ns;
  if (!ranks && !goes_on_without_ranks()) return false;
  if (plan_.dissemination) {
    rounds_.enter();
    posted_ns_ = network_ns_ = now_ns;
    state_ = State::kRounds;
  } else if (!leads()) {
    state_ = State::kPosting;
  } else {
    posted_ns_ = now_ns;
    if (ranks) stats_.record(Phase::kLocal, stamps.entered_ns, now_ns);
    arrived(plan_.node, {last_rank_, waited_ns(now_ns)}, now_ns);
    state_ = State::kWaiting;
  }
  if (ranks) stats_.record(Phase::kArrive, stamps.first_ns, stamps.entered_ns);
  return true;
}

void Delegate::arrived(uint32_t node, const Arrival& arrival, uint64_t now_ns) {
  nodes_[node].arrivals += 1;
  const bool early = nodes_[node].arrivals > number_ + 1;
  if (node != plan_.node) {
    uint64_t& began_ns = early ? early_began_ns_ : remote_began_ns_;
    const uint64_t first_ns = now_ns - std::min(now_ns - 1, arrival.waited_ns);
    began_ns = began_ns == 0 ? first_ns : std::min(began_ns, first_ns);
  }
  if (early) {
    early_ += 1;
    return;
  }
  arrived_ += 1;
  if (complete()) collected(arrival.last_rank, now_ns);
}

// All nodes have arrived: what is decided here goes with the release.
void Delegate::collected(uint32_t last_rank, uint64_t now_ns) {
  network_ns_ = now_ns;
  last_rank_ = last_rank;
  stats_.straggler(last_rank);
  if (remote_began_ns_ != 0) began_ns_ = std::min(began_ns_, remote_began_ns_);
  if (plan_.keep == nullptr) return;
  const uint64_t took_ns = now_ns > began_ns_ ? now_ns - began_ns_ : 0;
  kept_ = plan_.keep->keeps(trace_id_of(plan_.group, plan_.epoch, number_), took_ns);
}

// When a barrier began elsewhere counts as long as one of those who are there is not lost.
void Delegate::forget_lost() {
  bool there = false, early = false;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    const Node& each = nodes_[node];
    if (node == plan_.node || each.gone) continue;
    there = there || each.arrivals > number_ || each.present_known;
    early = early || each.arrivals > number_ + 1;
  }
  if (!there) remote_began_ns_ = 0;
  if (!early) early_began_ns_ = 0;
}

void Delegate::lose_node(uint32_t node, uint64_t now_ns) {
  Node& lost = nodes_[node];
  if (lost.gone) return;
  const bool waited = !complete();
  lost.gone = true;
  rounds_.lose(node);
  needed_ -= 1;
  if (lost.arrivals > number_) arrived_ -= 1;
  if (lost.arrivals > number_ + 1) early_ -= 1;
  forget_lost();
  if (waited && complete()) collected(kNoRank, now_ns);
}

const char* Delegate::on_record(const ControlRecord& record, uint64_t now_ns) {
  if (record.kind == RecordKind::kRelease) return on_release(record, now_ns);
  const uint32_t node = record.source < node_of_.size() ? node_of_[record.source] : kNoNode;
  if (node == kNoNode || node == plan_.node)
    return "a barrier's record of a rank that is no node's delegate";
  if (record.kind == RecordKind::kRound) return on_round(node, record, now_ns);
  if (record.kind == RecordKind::kAsk) return on_ask(record);
  if (!leads()) return "an arrival at a rank that does not lead";
  if (nodes_[node].gone) return nullptr;
  return plan_.dissemination ? on_present(node, record, now_ns) : on_arrival(node, record, now_ns);
}

const char* Delegate::on_release(const ControlRecord& record, uint64_t now_ns) {
  if (record.value != number_) return "another barrier's number";
  if (leads() || record.source != plan_.leader_rank || plan_.dissemination)
    return "a release by a rank that does not lead";
  if (state_ != State::kWaiting || release_seen_) return "a release before the arrival";
  if (record.extra > 1) return "a release that says what releases do not say";
  release_seen_ = true;
  kept_ = record.extra == 1;
  network_ns_ = now_ns;
  return nullptr;
}

const char* Delegate::on_round(uint32_t node, const ControlRecord& record, uint64_t now_ns) {
  if (!plan_.dissemination) return "a round of a barrier that has a leader";
  if (record.value == number_) network_ns_ = now_ns;
  return rounds_.on_round(node, record.value, unpack_round(record.extra));
}

const char* Delegate::on_ask(const ControlRecord& record) {
  if (!plan_.dissemination || leads() || record.source != plan_.leader_rank)
    return "a question by a rank that does not lead";
  if (record.value > number_ + 1) return "another barrier's number";
  asked_ = record.value + 1;
  return nullptr;
}

// Which ranks of a node are there. Of a barrier that is over here, or not begun, it says nothing.
const char* Delegate::on_present(uint32_t node, const ControlRecord& record, uint64_t now_ns) {
  if (record.kind != RecordKind::kPresent) return "an arrival at a barrier without a leader";
  if (record.value != number_) return nullptr;
  nodes_[node].present_known = true;
  nodes_[node].present = record.extra;
  // Sent when half the time was over there: the leader is to be the one that runs out of it.
  if (remote_began_ns_ == 0) remote_began_ns_ = now_ns - plan_.timeout_ns / 2;
  return nullptr;
}

// A node that was released may be one barrier ahead of the leader's own ranks.
const char* Delegate::on_arrival(uint32_t node, const ControlRecord& record, uint64_t now_ns) {
  const bool ahead = record.value == number_ + 1 && nodes_[node].released;
  if (record.value != nodes_[node].arrivals || (record.value != number_ && !ahead)) {
    return "another barrier's number";
  }
  if (record.kind == RecordKind::kPresent) return on_present(node, record, now_ns);
  const Arrival arrival = unpack_arrival(record.extra);
  const std::vector<uint32_t>& ranks = plan_.nodes[node];
  if (std::find(ranks.begin(), ranks.end(), arrival.last_rank) == ranks.end())
    return "a last rank that is not on that node";
  arrived(node, arrival, now_ns);
  return nullptr;
}

// Half the time is over for somebody who waits.
bool Delegate::late(uint64_t now_ns) const {
  const uint64_t half_ns = plan_.timeout_ns / 2;
  const uint64_t about = meeting_.begun(number_) ? meeting_.begun_ns() : remote_began_ns_;
  if (about == 0 || now_ns < about + half_ns) return false;
  const uint64_t begin = begin_ns();  // looks at every seat
  return begin != 0 && now_ns >= begin + half_ns;
}

// All rounds have come. Nobody collects: whether the barrier is kept, each node works out alike;
// that it was slow somewhere is known when the next one is over.
void Delegate::heard_of_all() {
  stats_.record(Phase::kNetwork, posted_ns_, network_ns_);
  if (!rounds_begun_) stats_.record(Phase::kLocal, posted_ns_, posted_ns_);  // one node
  if (rounds_.slow_before()) stats_.keep_after(plan_.group, plan_.epoch, number_ - 1);
  if (plan_.keep != nullptr)
    kept_ = plan_.keep->chooses(trace_id_of(plan_.group, plan_.epoch, number_));
}

uint64_t Delegate::begin_ns() const {
  const uint64_t first_ns = meeting_.begun(number_) ? meeting_.waits_ns(number_) : 0;
  if (first_ns != 0 || remote_began_ns_ == 0) return first_ns;
  return goes_on_without_ranks() || !meeting_.deserted() ? remote_began_ns_ : 0;
}

bool Delegate::timed_out(uint64_t now_ns) {
  const uint64_t begin = begin_ns();
  if (begin == 0) return false;
  // The leader knows most: the others give it a head start.
  const uint64_t head_start_ns = leads() ? 0 : plan_.timeout_ns / 4;
  if (now_ns <= begin + head_start_ns + (expired_ + 1) * plan_.timeout_ns) return false;
  expired_ += 1;
  return true;
}

std::vector<uint32_t> Delegate::missing() const {
  std::vector<uint32_t> out;
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    const std::vector<uint32_t>& ranks = plan_.nodes[node];
    if (nodes_[node].gone) continue;
    if (node != plan_.node && (!leads() || nodes_[node].arrivals > number_)) continue;
    for (uint32_t i = 0; i < ranks.size(); ++i) {
      const bool here =
          node == plan_.node
              ? meeting_.has_entered(number_, i) || meeting_.excluded(i)
              : nodes_[node].present_known && i < 64 && ((nodes_[node].present >> i) & 1) != 0;
      if (!here) out.push_back(ranks[i]);
    }
  }
  return out;
}

std::string Delegate::waits_for() const {
  const std::string leader = "the leader (rank " + std::to_string(plan_.leader_rank) + ")";
  return plan_.dissemination ? "a rank of another node had not: see " + leader
                             : leader + " did not release";
}

// The trace needs this node's part, also where nobody is left to leave: the leader's is its root.
void Delegate::keep_without_ranks(uint64_t number, uint64_t now_ns) {
  stats_.keep({plan_.group, number, plan_.epoch, last_rank_, leads(), true, began_ns_, posted_ns_,
               posted_ns_, posted_ns_, network_ns_, now_ns, now_ns, plan_.dissemination});
}

// Lets the local ranks go and gets ready for the next barrier.
void Delegate::next(uint64_t now_ns) {
  const uint64_t done = number_;
  const uint64_t took_ns = now_ns > began_ns_ ? now_ns - began_ns_ : 0;
  if (plan_.dissemination) rounds_.next(plan_.keep != nullptr && plan_.keep->slow(took_ns));
  for (Node& node : nodes_) node = Node{.arrivals = node.arrivals, .gone = node.gone};
  state_ = State::kGathering;
  number_ += 1;
  arrived_ = early_;
  remote_began_ns_ = early_began_ns_;
  early_began_ns_ = 0;
  early_ = 0;
  const Collected known{began_ns_, posted_ns_, network_ns_, last_rank_, kept_, plan_.dissemination};
  if (kept_ && meeting_.stamps(done).leaving == 0) keep_without_ranks(done, now_ns);
  release_seen_ = rounds_begun_ = kept_ = false;
  present_ = expired_ = 0;
  ask_next_ = 0;
  meeting_.release(done, now_ns, known);
}

}  // namespace epfabric::agent
