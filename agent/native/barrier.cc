// State changes of the barrier's delegate that need no sending, and what it says on a time-out.
#include "barrier.h"

namespace epfabric::agent {
namespace {
constexpr uint32_t kNoNode = ~0u;
constexpr uint32_t kNoRank = ~0u;
}  // namespace

Delegate::Delegate(const BarrierPlan& plan, Meeting& meeting, BarrierStats& stats)
    : plan_(plan),
      meeting_(meeting),
      stats_(stats),
      nodes_(plan.nodes.size()),
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
  record.value = number_;
  record.extra = extra;
  return record;
}

uint32_t Delegate::last_local_rank() const {
  const BarrierStamps& stamps = meeting_.stamps(number_);
  return stamps.ranks == 0 ? kNoRank : plan_.nodes[plan_.node][stamps.last_position];
}

// All local ranks have entered. A node whose ranks are all excluded has a part only as the leader.
bool Delegate::gathered(uint64_t now_ns) {
  const BarrierStamps& stamps = meeting_.stamps(number_);
  const bool ranks = stamps.ranks != 0;
  if (!leads()) {
    if (!ranks) return false;
    state_ = State::kPosting;
  } else {
    posted_ns_ = now_ns;
    if (ranks) stats_.record(Phase::kLocal, stamps.entered_ns, now_ns);
    arrived(plan_.node, last_local_rank(), now_ns);
    state_ = State::kWaiting;
  }
  if (ranks) stats_.record(Phase::kArrive, stamps.first_ns, stamps.entered_ns);
  return true;
}

void Delegate::arrived(uint32_t node, uint64_t last_rank, uint64_t now_ns) {
  nodes_[node].arrivals += 1;
  if (first_remote_ns_ == 0 && node != plan_.node) first_remote_ns_ = now_ns;
  if (nodes_[node].arrivals > number_ + 1) {
    early_ += 1;
    return;
  }
  arrived_ += 1;
  if (!complete()) return;
  network_ns_ = now_ns;
  stats_.straggler(static_cast<uint32_t>(last_rank));
}

void Delegate::lose_node(uint32_t node, uint64_t now_ns) {
  Node& lost = nodes_[node];
  if (lost.gone) return;
  const bool waited = !complete();
  lost.gone = true;
  needed_ -= 1;
  if (lost.arrivals > number_) arrived_ -= 1;
  if (lost.arrivals > number_ + 1) early_ -= 1;
  if (waited && complete()) network_ns_ = now_ns;
}

const char* Delegate::on_record(const ControlRecord& record, uint64_t now_ns) {
  if (record.kind == RecordKind::kRelease) {
    if (record.value != number_) return "another barrier's number";
    if (leads() || record.source != plan_.leader_rank)
      return "a release by a rank that does not lead";
    if (state_ != State::kWaiting || release_seen_) return "a release before the arrival";
    release_seen_ = true;
    network_ns_ = now_ns;
    return nullptr;
  }
  if (!leads()) return "an arrival at a rank that does not lead";
  const uint32_t node = record.source < node_of_.size() ? node_of_[record.source] : kNoNode;
  if (node == kNoNode || node == plan_.node)
    return "an arrival of a rank that is no node's delegate";
  return on_arrival(node, record, now_ns);
}

// A node that was released may be one barrier ahead of the leader's own ranks.
const char* Delegate::on_arrival(uint32_t node, const ControlRecord& record, uint64_t now_ns) {
  if (nodes_[node].gone) return nullptr;
  const bool ahead = record.value == number_ + 1 && nodes_[node].released;
  if (record.value != nodes_[node].arrivals || (record.value != number_ && !ahead)) {
    return "another barrier's number";
  }
  if (record.kind == RecordKind::kPresent) {
    if (ahead) return nullptr;
    nodes_[node].present_known = true;
    nodes_[node].present = record.extra;
    // Sent when half the time was over there: the leader is to be the one that runs out of it.
    if (first_remote_ns_ == 0) first_remote_ns_ = now_ns - plan_.timeout_ns / 2;
    return nullptr;
  }
  bool known = false;
  for (const uint32_t rank : plan_.nodes[node]) known = known || rank == record.extra;
  if (!known) return "a last rank that is not on that node";
  arrived(node, record.extra, now_ns);
  return nullptr;
}

uint64_t Delegate::begin_ns() const {
  if (meeting_.begun(number_)) return meeting_.begun_ns();
  return first_remote_ns_;
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

// Lets the local ranks go and gets ready for the next barrier.
void Delegate::next(uint64_t now_ns) {
  const uint64_t done = number_;
  for (Node& node : nodes_) node = Node{.arrivals = node.arrivals, .gone = node.gone};
  state_ = State::kGathering;
  number_ += 1;
  arrived_ = early_;
  first_remote_ns_ = early_ > 0 ? now_ns : 0;
  early_ = 0;
  release_seen_ = present_sent_ = false;
  expired_ = 0;
  meeting_.release(done, now_ns);
}

}  // namespace epfabric::agent
