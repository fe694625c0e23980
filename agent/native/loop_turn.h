// The rest of a proxy's loop: turns, requests, records from peers, the barrier's delegate, failure,
// idling. Included by proxy.cc.
#pragma once

#include <algorithm>

#include "loop.h"
#include "session.h"

namespace epfabric::agent {

inline constexpr uint64_t kGiveUpGraceNs = 500'000'000;

template <class Remote>
Loop<Remote>::Loop(Proxy& proxy, Remote& remote)
    : proxy_(proxy),
      remote_(remote),
      shape_(proxy.segments_.shape()),
      signal_values_(Mapping::anonymous(uint64_t{shape_.rings / proxy.proxies_ + 1} * shape_.world *
                                            shape_.signals * sizeof(uint64_t),
                                        "signal values")),
      idle_(proxy.settings_.idle, std::thread::hardware_concurrency() < 4) {
  for (const auto& ring : proxy.rings_) {
    if (ring->index() % proxy.proxies_ == proxy.index_) order_.push_back(ring.get());
  }
}

template <class Remote>
void Loop<Remote>::run() {
  while (!stopping()) turn();
  record_barrier();
}

template <class Remote>
void Loop<Remote>::turn() {
  if (work(platform::clock_ns())) {
    idle_.worked();
    return;
  }
  idle_.wait(now_ns_, active(), proxy_.count_, [this] { return block(); });
}

template <class Remote>
bool Loop<Remote>::work(uint64_t now_ns) {
  now_ns_ = now_ns;
  record_barrier();
  remote_.begin_turn(now_ns_);
  const uint64_t mark = proxy_.settle_.load(std::memory_order_relaxed);
  if ((mark & 1) == 0) proxy_.settle_.store(mark + 1, std::memory_order_release);
  proxy_.turns_.fetch_add(1, std::memory_order_seq_cst);  // partner: Proxy::pass()
  proxy_.count_.turns.add(1);

  if (epoch_ && epoch_->changes() != changes_) take_changes();
  bool worked = proxy_.asked_.load(std::memory_order_acquire) && handle_request();
  remote_.send_credits();
  if (proxy_.deliver_.load(std::memory_order_relaxed)) {  // partner: ask_delivery()
    remote_.flush();
    if (remote_.undelivered() == 0) proxy_.deliver_.store(false, std::memory_order_relaxed);
  }
  if (delegate_) worked = step_barrier(*delegate_, settling_) || worked;
  if (rail_) worked = step_barrier(*rail_, rail_settling_) || worked;
  worked = serve_rings() > 0 || worked;
  const size_t completions = remote_.poll(
      proxy_.settings_.drain_batch,
      [this](Link& link, const ControlRecord& record) { return take_record(link, record); },
      [this](uint32_t rank, const std::string& text) { lose(rank, text); },
      [this](int rank, const std::string& text) { fail(rank, text); });
  worked = completions > 0 || worked;
  note_undelivered();
  for (Ring* ring : order_) worked = ring->retire() || worked;
  // Partner of both: settled() of a delegate.
  if (completions == 0) proxy_.settle_.store((mark | 1) + 1, std::memory_order_release);
  if (completions != 0) proxy_.handled_.store(handled_ += completions, std::memory_order_release);
  if (now_ns_ - beat_ns_ > Proxy::kBeatNs) beat();
  return worked;
}

// False when there is something to poll first. Asking for the descriptor may move messages, so that
// a completion may be waiting until it says that none is; partner: settled() of a delegate.
template <class Remote>
bool Loop<Remote>::block() {
  const uint64_t mark = proxy_.settle_.load(std::memory_order_relaxed);
  if (!Remote::kComesUnasked) proxy_.settle_.store(mark | 1, std::memory_order_release);
  const int fd = remote_.wait_fd();
  if (fd == kPollFirst) return false;
  if (!Remote::kComesUnasked) proxy_.settle_.store((mark | 1) + 1, std::memory_order_release);
  // Of ranks that enter a barrier which a masked rank's proxy leads on, nothing tells.
  const bool leads_on = (delegate_ || rail_) && epoch_->gone(shape_.rank);
  const bool looks = proxy_.settings_.lookout == nullptr || fd == kNoWaitFd || leads_on;
  proxy_.block(looks ? Proxy::kLookNs : Proxy::kWatchedNs, fd);
  return true;
}

// Every 10 ms: the heartbeat (proxy 0), links without progress, links that are still to be
// connected.
template <class Remote>
void Loop<Remote>::beat() {
  beat_ns_ = now_ns_;
  proxy_.beat();
  if (!epoch_) return;
  for (Ring* ring : order_) {  // whoever left answers no more
    ring->abandon_answers(Refusal::kRankLeft, [this](uint32_t rank) { return epoch_->left(rank); });
  }
  if (unconnected_ > 0) {
    unconnected_ = remote_.connect();
    const std::lock_guard lock(proxy_.mutex_);
    proxy_.unreachable_ = remote_.unreachable();
    proxy_.unconnected_.store(unconnected_, std::memory_order_release);
  }
  remote_.flush();  // so that a peer that takes nothing is noticed
  remote_.watch([this](uint32_t rank, const std::string& text) { lose(rank, text); });
  for (const auto* each : {&delegate_, &rail_}) {
    if (*each && epoch_->running() && (*each)->timed_out(now_ns_))
      barrier_timed_out(**each, each == &rail_);
  }
  if (proxy_.index_ == 0 && epoch_->running()) look_at_pod();
}

// A pod that gives the epoch up usually closes its socket too, and then the agent has a better
// reason to tell; one that lives on (a GPU wait that passed its bound) ends the epoch here.
template <class Remote>
void Loop<Remote>::look_at_pod() {
  if (platform::load_relaxed(&proxy_.segments_.pod_header()->abort) == 0) return;
  if (given_up_ns_ == 0) given_up_ns_ = now_ns_;
  if (now_ns_ - given_up_ns_ < kGiveUpGraceNs || epoch_->gone(shape_.rank)) return;
  const std::string text = "rank " + std::to_string(shape_.rank) +
                           " was lost: its pod gave the epoch up (it set its abort word)";
  report_lost(shape_.rank, text);
}

template <class Remote>
bool Loop<Remote>::active() const {
  if (unconnected_ > 0 || remote_.inflight() + remote_.undelivered() > 0 ||
      (delegate_ && delegate_->busy()) || (rail_ && rail_->busy()))
    return true;
  for (const Ring* ring : order_) {
    if (ring->holding() || ring->awaits_answers()) return true;
  }
  return false;
}

template <class Remote>
bool Loop<Remote>::handle_request() {
  Request* request = proxy_.take_request();
  if (request == nullptr) return false;
  try {
    if (request->kind == Request::Kind::kAddRegion) {
      request->key = remote_.add_region(*request->region);
      const std::lock_guard lock(proxy_.mutex_);
      proxy_.address_ = remote_.address();  // a striped one names what is registered
      proxy_.ability_.store(remote_.ability(), std::memory_order_relaxed);  // so does this
    }
    if (request->kind == Request::Kind::kOpenEpoch) open(request->epoch);
  } catch (const std::exception& error) {  // NativeError, or no memory
    request->error = error.what();
  }
  proxy_.answer();
  return true;
}

template <class Remote>
void Loop<Remote>::open(const std::shared_ptr<Epoch>& epoch) {
  remote_.open(*epoch);
  view_ = epoch->view(shape_.rank, shape_.signals);
  loopback_ = LoopbackTransport(shape_.rank, &proxy_.regions_, epoch->targets());
  if (proxy_.index_ == 0) {
    for (const auto& session : epoch->sessions()) {
      if (session->shape().rank == shape_.rank) session_ = session.get();
    }
    position_ = epoch->position_of(shape_.rank);
    if (epoch->delegate_of(epoch->node()) == shape_.rank) {
      delegate_ =
          std::make_unique<Delegate>(epoch->barrier_plan(), epoch->meeting(), epoch->stats());
    }
    rail_ = std::make_unique<Delegate>(epoch->rail_plan(position_), rail_meeting_,
                                       epoch->stats().rails());
  }
  lost_.assign(epoch->world(), 0);
  masked_.assign(epoch->world(), 0);
  epoch_ = epoch;
  note_waiting();
  unconnected_ = remote_.connect();
  proxy_.unconnected_.store(unconnected_, std::memory_order_release);
}

template <class Remote>
const char* Loop<Remote>::take_record(Link& link, const ControlRecord& record) {
  if (record.kind == RecordKind::kCredit) return nullptr;
  if (record.kind == RecordKind::kOld) return take_answer(link, record);
  if (record.kind == RecordKind::kSignal) {
    uint64_t* word = proxy_.segments_.signal(link.rank, record.ring, record.index);
    // Only this thread stores the word, and no pod can: that memfd is sealed against them.
    if (record.value < platform::load_relaxed(word)) return "a signal word that would shrink";
    // Partner: the pod's wait_at_least(); the payload came before the record on the same
    // connection.
    platform::store_release(word, record.value);
    return nullptr;
  }
  if (is_order(record.kind)) return take_order(link, record);
  const auto& delegate = record.index == kRailScope ? rail_ : delegate_;
  if (!delegate) return "a barrier record for a rank that is no delegate";
  return delegate->on_record(record, platform::clock_ns());
}

template <class Remote>
bool Loop<Remote>::step_barrier(Delegate& delegate, Settling& settling) {
  if (!epoch_->running()) return false;
  bool moved = false;
  const uint64_t number = delegate.number();  // one barrier a turn is the most
  const auto send = [this](uint32_t rank, const ControlRecord& record) {
    return remote_.send(rank, record);
  };
  while (delegate.number() == number &&
         delegate.step(now_ns_, send, [&] { return settled(settling); })) {
    moved = true;
  }
  return moved;
}

// Whatever a peer's proxy saw acknowledged before its rank entered the barrier may still lie in the
// queue of a proxy of this node: each of them has to come to the end of its queue once, or, where
// that never ends, has to handle as many completions as may lie in it.
template <class Remote>
bool Loop<Remote>::settled(Settling& settling) {
  if (Remote::kDeliveredIsTaken || epoch_->plan().nodes.size() == 1) return true;
  if (!settling.begun) begin(settling);
  std::erase_if(settling.left, [](const Unsettled& entry) {
    return entry.proxy->settle_mark() >= entry.mark || entry.proxy->handled() >= entry.handled;
  });
  if (Remote::kComesUnasked) {  // one may have begun to block since it was looked at
    for (const Unsettled& entry : settling.left) entry.proxy->wake();
  }
  settling.begun = !settling.left.empty();
  return !settling.begun;
}

template <class Remote>
void Loop<Remote>::begin(Settling& settling) {
  settling.begun = true;
  for (const Proxy* proxy : epoch_->proxies()) {
    const uint64_t mark = proxy->settle_mark();
    // The next even number is the end of a poll that may have begun already: that is enough where
    // nothing comes but by a poll. The own next poll is still to come.
    const bool anew = Remote::kComesUnasked && proxy != &proxy_;
    settling.left.push_back(
        {proxy, (mark + (anew ? 3 : 1)) & ~uint64_t{1}, proxy->handled() + proxy->most_waiting()});
  }
}

template <class Remote>
void Loop<Remote>::note_waiting() {
  const uint64_t most = remote_.most_waiting();
  proxy_.most_waiting_.store(most == 0 ? 0 : most + proxy_.settings_.drain_batch,
                             std::memory_order_release);
}

// Ranks were masked or excluded.
template <class Remote>
void Loop<Remote>::take_changes() {
  changes_ = epoch_->changes();
  for (uint32_t rank = 0; rank < epoch_->world(); ++rank) {
    const uint8_t state = epoch_->state(rank);
    if (state < kMasked || masked_[rank] == state) continue;
    masked_[rank] = state;
    remote_.abandon(rank);
  }
  note_waiting();
  const bool masked = epoch_->masked(shape_.rank);
  for (Ring* ring : order_) {
    ring->abandon_answers(Refusal::kNone,
                          [this, masked](uint32_t rank) { return masked || epoch_->masked(rank); });
  }
  if (masked) {
    for (Ring* ring : order_) {
      if (ring->holding()) ring->mask();
    }
    remote_.stop_trying();
  }
  if (!rail_) return;
  if (epoch_->state(shape_.rank) == kExcluded) rail_meeting_.exclude(0);
  for (auto* each : {&delegate_, &rail_}) {
    if (!*each) continue;
    const auto& nodes = (*each)->nodes();
    for (uint32_t node = 0; node < nodes.size(); ++node) {
      const bool gone = std::all_of(nodes[node].begin(), nodes[node].end(), [this](uint32_t rank) {
        return epoch_->gone(rank) && epoch_->state(rank) != kMasked;
      });
      if (gone && node != (*each)->node()) (*each)->lose_node(node, platform::clock_ns());
    }
  }
}

// Nothing reaches that rank any more. To a masked rank only its node's barrier still matters.
template <class Remote>
void Loop<Remote>::lose(uint32_t rank, const std::string& text) {
  if (!epoch_ || epoch_->gone(rank)) return;
  const bool meets = delegate_ && epoch_->delegate_of(epoch_->node_of(rank)) == rank;
  if (epoch_->masked(shape_.rank) && !meets) return;
  if (!epoch_->plan().mask || !epoch_->running()) return fail(static_cast<int>(rank), text);
  report_lost(rank, lost_text(static_cast<int>(rank), text));
}

// `rank` below 0: a peer that is not known. To itself a rank has connections through its NIC, where
// that applies ATOMICs.
template <class Remote>
std::string Loop<Remote>::lost_text(int rank, const std::string& text) const {
  const std::string own = "rank " + std::to_string(shape_.rank);
  if (rank == static_cast<int>(shape_.rank))
    return own + " cannot reach its own memory through its NIC: " + text;
  return own + " lost " + (rank < 0 ? "a peer" : "rank " + std::to_string(rank)) + ": " + text;
}

// Ends the epoch; under the policy that masks it is for others to decide, and what waits for that
// rank goes on waiting until they have.
template <class Remote>
void Loop<Remote>::report_lost(uint32_t rank, const std::string& text) {
  const bool mask = epoch_->plan().mask;
  if (mask && lost_[rank]) return;
  lost_[rank] = 1;
  Event event{mask ? "lost" : "failed", epoch_->plan().group, static_cast<int>(rank), {rank}, text};
  if (mask) return epoch_->report(std::move(event));
  epoch_->fail(std::move(event));
}

template <class Remote>
void Loop<Remote>::fail(int rank, const std::string& text) {
  if (!epoch_ || failed_ || (rank >= 0 && epoch_->gone(static_cast<uint32_t>(rank)))) return;
  failed_ = true;
  epoch_->fail(
      {"failed", epoch_->plan().group, rank,
       rank < 0 ? std::vector<uint32_t>{} : std::vector<uint32_t>{static_cast<uint32_t>(rank)},
       lost_text(rank, text)});
}

template <class Remote>
void Loop<Remote>::barrier_timed_out(const Delegate& delegate, bool rail) {
  std::string text = (rail ? "barrier of rail " + std::to_string(position_) + " with number "
                           : std::string("barrier ")) +
                     std::to_string(delegate.number()) + " of epoch " +
                     std::to_string(epoch_->plan().epoch) + " was not complete after " +
                     std::to_string(epoch_->plan().barrier_timeout_ns / 1'000'000) + " ms";
  const std::vector<uint32_t> missing = delegate.missing();
  // Nodes can be asked who has not entered the barrier of all, but not that of a rail.
  if (epoch_->plan().mask && !rail) {
    return epoch_->report(
        {"barrier_timeout", epoch_->plan().group, -1, {}, text, delegate.number()});
  }
  text += "; ";
  if (missing.empty()) {
    text += "every rank of this node had entered, " + delegate.waits_for();
  } else {
    text += "missing ranks:";
    for (const uint32_t rank : missing) text += " " + std::to_string(rank);
  }
  const uint32_t about = missing.empty() ? epoch_->plan().leader_rank : missing[0];
  if (epoch_->plan().mask && !missing.empty()) return report_lost(about, text);
  epoch_->fail({"barrier_timeout", epoch_->plan().group, static_cast<int>(about), missing, text,
                delegate.number()});
}

}  // namespace epfabric::agent
