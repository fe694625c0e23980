// Puts an epoch together from what the agents agreed on, with every inconsistency an error that
// names it.
#include "epoch.h"

#include "session.h"

namespace epfabric::agent {
namespace {

std::string of_rank(uint32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

Epoch::Epoch(const EpochPlan& plan, std::vector<std::shared_ptr<Session>> local,
             std::vector<SessionBlob> blobs, std::shared_ptr<BarrierStats> stats, Events& events)
    : plan_(plan),
      blobs_(std::move(blobs)),
      states_(blobs_.size()),
      stats_(std::move(stats)),
      events_(events),
      sessions_(std::move(local)),
      mask_(kMaskBytes / 8) {
  place_ranks();
  place_sessions();
  choose();
}

// Every rank is on exactly one node, and all local sessions are on one.
void Epoch::place_ranks() {
  constexpr uint32_t kNowhere = ~0u;
  const auto world = static_cast<uint32_t>(blobs_.size());
  node_of_.assign(world, kNowhere);
  for (uint32_t node = 0; node < plan_.nodes.size(); ++node) {
    if (plan_.nodes[node].empty())
      throw NativeError("node " + std::to_string(node) + " has no ranks");
    for (const uint32_t rank : plan_.nodes[node]) {
      if (rank >= world) throw NativeError(of_rank(rank) + " is not below the world size");
      if (node_of_[rank] != kNowhere) throw NativeError(of_rank(rank) + " is on two nodes");
      node_of_[rank] = node;
    }
  }
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (node_of_[rank] == kNowhere) throw NativeError(of_rank(rank) + " is on no node");
  }
  if (plan_.leader_rank >= world) throw NativeError("the leader is " + of_rank(plan_.leader_rank));
  node_ = node_of_[sessions_.front()->shape().rank];
  if (sessions_.size() != plan_.nodes[node_].size()) {
    throw NativeError("this node has " + std::to_string(sessions_.size()) +
                      " sessions of the group, but " + std::to_string(plan_.nodes[node_].size()) +
                      " ranks of it");
  }
}

void Epoch::place_sessions() {
  const Shape& shape = sessions_.front()->shape();
  proxies_.resize(world());
  extents_.resize(world());
  targets_.resize(world());
  const auto require_like_ours = [&shape](const auto& other, uint32_t rank) {
    if (other.world == shape.world && other.rings == shape.rings && other.signals == shape.signals)
      return;
    throw NativeError(of_rank(rank) +
                      " has another world size, or another number of rings or signals: the "
                      "same settings must hold for every rank");
  };
  for (const auto& session : sessions_) {
    const uint32_t rank = session->shape().rank;
    if (node_of_[rank] != node_)
      throw NativeError(of_rank(rank) + " has a session here but is elsewhere");
    require_like_ours(session->shape(), rank);
    if (targets_[rank].segments != nullptr) throw NativeError(of_rank(rank) + " has two sessions");
    targets_[rank] = {&session->segments(), &session->regions()};
    proxies_[rank] = static_cast<uint32_t>(session->proxies().size());
    extents_[rank] = session->extents();
    for (const auto& proxy : session->proxies()) local_proxies_.push_back(proxy.get());
  }
  for (uint32_t rank = 0; rank < world(); ++rank) {
    if (local(rank)) continue;
    const SessionBlob& blob = blobs_[rank];
    if (blob.proxies.empty())
      throw NativeError("the description of " + of_rank(rank) + " is missing");
    require_like_ours(blob, rank);
    proxies_[rank] = static_cast<uint32_t>(blob.proxies.size());
    extents_[rank] = blob.regions;
  }
  for (const auto& extents : extents_) regions_.emplace_back(extents);
  meeting_ = std::make_unique<Meeting>(static_cast<uint32_t>(sessions_.size()));
}

void Epoch::choose() {
  std::vector<AtomicsOffer> offers;
  for (const SessionBlob& blob : blobs_) offers.push_back(blob.atomics);
  const Census counts = census();
  std::vector<uint64_t> needs(world());
  for (const std::vector<uint32_t>& ranks : plan_.nodes) {
    uint64_t all = 0;
    for (const uint32_t rank : ranks) all += counts.links(rank) + counts.neighbours(rank);
    for (const uint32_t rank : ranks) needs[rank] = all;
  }
  atomics_ = choose_atomics(offers, needs, plan_.nodes.size() == 1);
}

SessionView Epoch::view(uint32_t rank, uint32_t signals) const {
  return {world(), signals, extents_[rank], regions_, states_, &departed_};
}

uint32_t Epoch::position_of(uint32_t rank) const {
  const std::vector<uint32_t>& ranks = plan_.nodes[node_of_[rank]];
  uint32_t at = 0;
  while (ranks[at] != rank) ++at;
  return at;
}

uint32_t Epoch::delegate_of(uint32_t node) const {
  return node == node_of_[plan_.leader_rank] ? plan_.leader_rank : plan_.nodes[node].front();
}

BarrierPlan Epoch::barrier_plan() const {
  BarrierPlan out{plan_.epoch,
                  node_,
                  node_of_[plan_.leader_rank],
                  plan_.leader_rank,
                  plan_.barrier_timeout_ns,
                  plan_.nodes,
                  {},
                  plan_.uid,
                  plan_.keep,
                  plan_.dissemination};
  for (uint32_t node = 0; node < plan_.nodes.size(); ++node)
    out.delegates.push_back(delegate_of(node));
  return out;
}

BarrierPlan Epoch::rail_plan(uint32_t position) const {
  BarrierPlan out{plan_.epoch, 0,  0,         0,       plan_.barrier_timeout_ns,
                  {},          {}, plan_.uid, nullptr, plan_.dissemination,
                  true};
  for (uint32_t node = 0; node < plan_.nodes.size(); ++node) {
    if (plan_.nodes[node].size() <= position) continue;
    const auto place = static_cast<uint32_t>(out.nodes.size());
    const uint32_t rank = plan_.nodes[node][position];
    if (node == node_) out.node = place;
    if (node == node_of_[plan_.leader_rank]) out.leader_node = place;
    out.nodes.push_back({rank});
    out.delegates.push_back(rank);
  }
  out.leader_rank = out.delegates[out.leader_node];
  return out;
}

void Epoch::barrier_left(uint64_t number, uint64_t now_ns) {
  const bool leads = node_ == node_of_[plan_.leader_rank];
  stats_->finished(
      times_of(meeting_->stamps(number), plan_.uid, plan_.epoch, number, leads, now_ns));
}

void Epoch::leave(uint32_t rank) {
  if (rank >= world()) throw NativeError(of_rank(rank) + " is not in the group");
  uint8_t present = kPresent;
  if (states_[rank].compare_exchange_strong(present, kLeft, std::memory_order_seq_cst)) {
    departed_.fetch_add(1, std::memory_order_acq_rel);
  }
}

// The mask comes first: who sees a command completed as masked sees why.
void Epoch::mask(const std::vector<uint32_t>& ranks) {
  {
    const std::lock_guard lock(mutex_);
    for (const uint32_t rank : ranks) {
      if (rank >= world()) throw NativeError(of_rank(rank) + " is not in the group");
      mask_[rank / 64] |= uint64_t{1} << (rank % 64);
    }
    for (Session* session : reachable_) {
      const uint32_t own = session->shape().rank;
      for (const uint32_t rank : ranks) {
        platform::store_release(session->segments().mask(rank), mask_[rank / 64]);
        if (rank == own) platform::store_release(&session->segments().header()->abort, 1);
      }
    }
  }
  for (const uint32_t rank : ranks) {
    uint8_t present = kPresent;
    states_[rank].compare_exchange_strong(present, kMasked, std::memory_order_seq_cst);
  }
  changes_.fetch_add(1, std::memory_order_seq_cst);
}

void Epoch::exclude(const std::vector<uint32_t>& ranks) {
  for (const uint32_t rank : ranks) {
    if (rank >= world()) throw NativeError(of_rank(rank) + " is not in the group");
    if (local(rank)) meeting_->exclude(position_of(rank));
    uint8_t masked = kMasked;
    states_[rank].compare_exchange_strong(masked, kExcluded, std::memory_order_seq_cst);
  }
  changes_.fetch_add(1, std::memory_order_seq_cst);
}

std::vector<uint32_t> Epoch::absent(uint64_t number) const {
  std::vector<uint32_t> out;
  const std::vector<uint32_t>& ranks = plan_.nodes[node_];
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    if (!gone(ranks[i]) && !meeting_->has_entered(number, i)) out.push_back(ranks[i]);
  }
  return out;
}

void Epoch::fail(Event event, bool quiet) {
  const std::lock_guard lock(mutex_);
  if (failed_.exchange(true, std::memory_order_acq_rel)) return;
  failure_ = event.detail;
  for (Session* session : reachable_) {
    platform::store_release(&session->segments().header()->abort, 1);  // partner: AbortWords::set()
  }
  if (!quiet) events_.push(std::move(event));
}

void Epoch::reach(Session* session) {
  const std::lock_guard lock(mutex_);
  reachable_.push_back(session);
  if (failed()) platform::store_release(&session->segments().header()->abort, 1);
}

void Epoch::forget(const Session* session) {
  const std::lock_guard lock(mutex_);
  std::erase(reachable_, session);
}

std::string Epoch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace epfabric::agent
