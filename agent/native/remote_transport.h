// Ranks of other nodes, over any endpoint: payload by RDMA writes, signals and barrier records
// through the peer's mailbox; a WRITE's last part and its signal are one operation. One per proxy,
// used by its thread only. An operation completes when its source may be reused. Where a link's
// writes arrive in order, one marker, which completes when it is visible at the target, tells that
// all before it are; where they don't, the receiver says how far it has come (gate.h).
// Where the endpoint can, a connection that breaks is made anew (remote_mend.h). remote_links.h,
// remote_post.h, remote_gate.h, remote_mend.h and remote_arrivals.h define what is not here;
// remote_transport.cc makes the instances.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "budget.h"
#include "epoch.h"
#include "link.h"
#include "memory.h"
#include "transport.h"
#include "work_list.h"

namespace epfabric::agent {

template <Endpoint E>
class RemoteTransport {
 public:
  // `network` is what an E is made from.
  template <class Network>
  RemoteTransport(const Network& network, uint32_t index, const Shape& shape, uint32_t proxies,
                  const Limits& limits, ProxyCount& count);

  // Whether this endpoint's NIC can apply ATOMICs, and whether NICs apply this epoch's.
  AtomicsAbility ability() const {
    if constexpr (HardwareAtomics<E>) return endpoint_.ability();
    return AtomicsAbility::kUnable;
  }
  bool by_nic() const {
    if constexpr (HardwareAtomics<E>) return by_nic_;
    return false;
  }
  std::vector<std::byte> address() const { return endpoint_.address(); }
  RemoteKey mailbox() const { return mailbox_key_.remote; }
  RemoteKey add_region(const Region& region);

  // Makes a link to every proxy of a remote rank that is this one's partner. May throw NativeError.
  void open(Epoch& epoch);
  void begin_turn(uint64_t now_ns) { now_ns_ = now_ns; }
  // Probes links that are not connected yet; how many are missing. unreachable() names the first.
  size_t connect();
  std::string unreachable() const;

  Posted write(const WritePart& part, const SignalPart* then);
  Posted signal(const SignalPart& part);
  // By an order to the owner's agent, which answers with the old value, or by its NIC.
  Applied atomic(const AtomicPart& part);
  // Sends the old value, now or in a later turn; why the peer may not ask for it, or nullptr.
  const char* answer(Link& link, const ControlRecord& record);
  bool send(uint32_t rank, ControlRecord record);
  // What is owed: answers, then credits.
  void send_credits();

  // Makes the DRAIN that `ring` holds wait for every link with undelivered operations; false =
  // busy, call again. `serial` starts as 0 and belongs to the DRAIN.
  bool drain(Ring& ring, uint64_t& serial);
  // Asks such links for word, once for what was posted so far, and so many in one call that a turn
  // stays short.
  void flush();
  uint64_t undelivered() const { return behind_.size(); }

  // Handles at most `batch` completions. Records go to `take(link, record)`, a rank that cannot be
  // reached to `lose(rank, text)`, another fault to `fail(rank, text)`. How many there were.
  template <class Take, class Lose, class Fail>
  size_t poll(size_t batch, Take&& take, Lose&& lose, Fail&& fail);
  // Looks for peers that make no progress.
  template <class Lose>
  void watch(Lose&& lose);
  // The rank is masked: what was under way to it counts as complete.
  void abandon(uint32_t rank);
  // The own rank is masked: what was refused is not tried again.
  void stop_trying();

  int wait_fd() { return endpoint_.wait_fd(); }
  // What a peer knows to be delivered was taken here, and is published.
  static constexpr bool kDeliveredIsTaken = Unordered<E>;
  // Hardware puts completions into the queue at any time; else only a poll does.
  static constexpr bool kComesUnasked = Mending<E>;
  // Completions that may lie in the queue at once: records that were not taken, own operations.
  uint64_t most_waiting() const {
    const uint64_t out = mailboxed_ * kMailboxSlots + operations_.size();
    if constexpr (Movable<E>) return endpoint_.most_waiting(out);
    return out;
  }
  uint64_t inflight() const { return operations_.size() - free_.size() - abandoned_; }
  RecordView view_of(const Link& link) const;

 private:
  static constexpr uint64_t kMostWaits = kOperations / 4;  // the rest has to go on

  bool post_record(Link& link, ControlRecord& record, Operation::Kind kind, Ring* ring,
                   const Piece* payload = nullptr);
  bool post_payload(Link& link, const Piece& payload, Operation* operation);
  bool post_marker(Link& link, Ring* ring);
  static Posted busy(Link& link);
  void use_pace(Link& link);
  void note_pace(Link& link, const Operation& operation)
    requires Paced<E>;
  bool post_credit(Link& link);
  bool post_ask(Link& link);
  bool await_credit(Link& link, Ring* ring);
  void remember(Operation* operation, const Piece* payload, bool record);
  bool hold(Operation* operation, const Completion& completion);
  std::string spent(const Link& link)
    requires Mending<E>;
  void note_line(const Link& link)
    requires Mending<E>;
  template <class Lose>
  void mend(Lose&& lose)
    requires Mending<E>;
  void start_mending(PeerIndex peer)
    requires Mending<E>;
  std::string mend_link(Link& link)
    requires Mending<E>;
  void collect(Link& link)
    requires Mending<E>;
  std::string replay(Link& link)
    requires Mending<E>;
  bool arrived(Link& link, Operation* operation, bool& taken)
    requires Mending<E>;
  ssize_t post_again(Link& link, Operation* operation)
    requires Mending<E>;
  ssize_t announce_again(Link& link, Operation* operation)
    requires Mending<E>;
  Piece piece_of(const Link& link, const ControlRecord* staged, uint64_t number) const;
  void caught_up(Link& link);
  bool may_post(Link& link, RecordKind kind);
  static uint32_t next_imm(const Link& link);
  static bool owes(const Link& link);
  void note_acknowledged(Link& link);
  void end_waits(Link& link, uint64_t delivered);
  void send_answers();
  bool post_order(Link& link, const AtomicPart& part);
  bool post_atomic(Link& link, const AtomicPart& part);
  void take_old(const Operation& operation, bool applied);
  static ControlRecord record_of(const SignalPart& part);
  Piece scratch_of(const Link& link) const;
  Operation* take_operation(Link& link, Operation::Kind kind, Ring* ring, uint64_t bytes);
  void give_back(Operation* operation);
  void add_operations(size_t count);
  void release_lost();
  bool posted(ssize_t result, Operation* operation);
  void add_link(uint32_t rank, uint32_t proxy, uint32_t own_domain);
  void add_neighbour(uint32_t rank, uint32_t proxy);
  uint32_t domain_at(uint32_t rank, uint32_t proxy) const;
  template <class Take, class Fail>
  void take_imm(uint64_t data, Take&& take, Fail&& fail);
  template <class Take, class Fail>
  void take_arrival(Link& link, const Imm& imm, Take&& take, Fail&& fail);
  template <class Take>
  const char* take_record(Link& link, const ControlRecord& record, Take&& take);
  void note_owed(Link& link);
  template <class Lose>
  void finished(Operation* operation, const Completion& completion, Lose&& lose);

  const uint32_t index_;
  const Shape shape_;
  const uint32_t own_proxies_;
  const Limits limits_;
  ProxyCount& count_;
  const uint32_t domains_;  // mailboxes that there is room for
  E endpoint_;
  Mapping mailboxes_;  // by own domain, then a scratch page that probes write to
  Mapping staging_;
  typename E::LocalKey mailbox_key_;
  typename E::LocalKey staging_key_;
  std::vector<typename E::LocalKey> region_keys_;
  std::vector<const Region*> regions_;
  std::deque<Operation> operations_;
  std::vector<Operation*> free_;
  uint64_t abandoned_ = 0;
  uint64_t lost_ = 0;
  uint64_t waits_ = 0;
  std::vector<Completion> completions_;
  Epoch* epoch_ = nullptr;
  std::vector<std::unique_ptr<Link>> links_;  // by own domain, then neighbours
  size_t mailboxed_ = 0;                      // those before the neighbours
  bool by_nic_ = false;
  std::vector<uint64_t*> results_;  // free ones: where NICs put old values
  std::vector<Link*> to_rank_;      // by rank: where this proxy's commands go
  std::vector<Link*> owing_;
  std::vector<Link*> answering_;  // with answers that could not be sent
  WorkList<Link, &Link::behind> behind_;
  WorkList<Link, &Link::unmarked> unmarked_;
  WorkList<Link, &Link::unmarked>::Cursor flushing_;
  std::array<WorkList<Link, &Link::behind>::Cursor, kMaxRings> draining_;  // by ring
  std::vector<Link*> mending_;
  size_t mending_at_ = 0;  // whose turn it is
  uint64_t met_ns_ = 0;    // the last look for their peers
  uint64_t told_ns_ = 0;   // when it was last told that a link goes over another line
  uint64_t drains_ = 0;
  uint64_t line_free_ns_ = 0;  // when the NIC has sent what was posted, if nothing else is there
  uint64_t now_ns_ = 0;
};

template <Endpoint E>
template <class Take, class Lose, class Fail>
size_t RemoteTransport<E>::poll(size_t batch, Take&& take, Lose&& lose, Fail&& fail) {
  const size_t got = endpoint_.poll(completions_.data(), batch);
  for (size_t i = 0; i < got; ++i) {
    const Completion& completion = completions_[i];
    if (completion.record) {
      take_imm(completion.imm, take, fail);
    } else if (completion.context != nullptr) {
      finished(static_cast<Operation*>(completion.context), completion, lose);
    } else if (completion.error != 0) {
      fail(-1, "the completion queue failed: " + completion.detail);
    }
  }
  if constexpr (Mending<E>) mend(lose);
  return got;
}

template <Endpoint E>
template <class Lose>
void RemoteTransport<E>::finished(Operation* operation, const Completion& completion, Lose&& lose) {
  Link& link = *operation->link;
  link.progress_ns = now_ns_;
  const Operation::Kind kind = operation->kind;
  if constexpr (Paced<E>) {
    if (limits_.adaptive && completion.error == 0) note_pace(link, *operation);
  }
  const bool failed = completion.error != 0 && epoch_ != nullptr;
  if (failed && hold(operation, completion)) return;
  // What is lost with a peer that left in good order, or is masked, was nothing that anyone waits
  // for.
  const bool lost = failed && !epoch_->gone(link.rank);
  if constexpr (HardwareAtomics<E>) {
    if (kind == Operation::Kind::kAtomic) take_old(*operation, completion.error == 0);
  }
  // A failed write completes its ticket only once its rank is masked: else who waits for it is told
  // by the abort word.
  if (lost && operation->ring != nullptr) {
    operation->lost = true;
    lost_ += 1;
    link.held += 1;
  } else {
    if (operation->ring != nullptr) operation->ring->part_done(operation->ticket);
    give_back(operation);
  }
  if (completion.error == 0) {
    if constexpr (Mending<E>) link.tries = 0;
    link.connected = link.connected || kind == Operation::Kind::kProbe;
    if (Unordered<E> && kind == Operation::Kind::kCredit) link.gate->arrivals.credited();
    if (kind == Operation::Kind::kMarker) {
      link.delivered = std::max(link.delivered, operation->covers);
      if (link.delivered == link.posted) caught_up(link);
    }
    return;
  }
  // An ATOMIC is not sent again, but its connection is made anew: a masked rank's node may need it.
  const bool atomic = kind == Operation::Kind::kAtomic;
  link.broken = link.broken || !atomic || completion.error != kBroken;
  // A credit that does not arrive matters only if the peer still sends; then something else fails.
  if (kind == Operation::Kind::kCredit || !lost) return;
  lose(link.rank, (atomic ? "an ATOMIC that its NIC applies failed, and may have been done or not: "
                          : "a write to it failed: ") +
                      completion.detail);
}

template <Endpoint E>
void RemoteTransport<E>::note_pace(Link& link, const Operation& operation)
  requires Paced<E>
{
  if (operation.kind != Operation::Kind::kPart && operation.kind != Operation::Kind::kRecord)
    return;
  link.pace.completed(now_ns_, operation.posted_ns, operation.own_ns);
  use_pace(link);
}

template <Endpoint E>
void RemoteTransport<E>::use_pace(Link& link) {
  link.cap = link.pace.cap();
  link.cap_bytes = link.pace.cap_bytes(limits_.inflight_bytes);
}

template <Endpoint E>
template <class Lose>
void RemoteTransport<E>::watch(Lose&& lose) {
  if (lost_ > 0) release_lost();
  endpoint_.attend();
  for (const auto& link : links_) {
    if (epoch_ == nullptr) continue;
    if (epoch_->gone(link->rank)) {
      if (Unordered<E>) end_waits(*link, UINT64_MAX);
      continue;
    }
    // One that is being made anew has a bound of its own.
    const uint64_t late_ns = link->mend == Mend::kWhole ? now_ns_ : 0;
    const bool waits = link->inflight > 0 && late_ns > link->progress_ns + limits_.stall_ns;
    const bool asked = link->atomics > 0 && late_ns > link->answered_ns + limits_.stall_ns;
    const bool busy = link->busy_since_ns != 0 && late_ns > link->busy_since_ns + limits_.stall_ns;
    if (const std::string& fault = endpoint_.fault(link->peer); !fault.empty()) {
      lose(link->rank, fault);
    } else if (link->error != 0) {
      lose(link->rank, std::string("a write to it cannot be posted: ") + E::text_of(link->error));
    } else if (asked) {
      lose(link->rank,
           "it answered no ATOMIC for " + std::to_string(limits_.stall_ns / 1'000'000) + " ms");
    } else if (waits || busy) {
      lose(link->rank,
           "it acknowledged nothing for " + std::to_string(limits_.stall_ns / 1'000'000) + " ms");
    }
  }
}

// Some links' next steps, the others' in later turns.
template <Endpoint E>
template <class Lose>
void RemoteTransport<E>::mend(Lose&& lose)
  requires Mending<E>
{
  PeerIndex peer = 0;
  for (size_t i = 0; i < kMendsAtOnce && endpoint_.next_broken(peer); ++i) start_mending(peer);
  if (mending_.empty()) return;
  if (now_ns_ - met_ns_ >= kMeetEveryNs) {
    met_ns_ = now_ns_;
    endpoint_.meet();
  }
  for (size_t looks = std::min(mending_.size(), kMendsAtOnce); looks > 0; --looks) {
    if (mending_at_ >= mending_.size()) mending_at_ = 0;
    Link& link = *mending_[mending_at_];
    if (!link.broken && !epoch_->left(link.rank)) {
      const std::string why = mend_link(link);
      link.broken = !why.empty();
      if (link.broken) lose(link.rank, why);
      if (!link.broken && link.mend != Mend::kWhole) {
        ++mending_at_;
        continue;
      }
    }
    link.journal = {};
    mending_[mending_at_] = mending_.back();
    mending_.pop_back();
  }
}

}  // namespace epfabric::agent

#include "remote_arrivals.h"
