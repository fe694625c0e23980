// Making a broken connection anew: what its peer has not taken is sent again, in order, and nothing
// else. Only where the endpoint is Mending. Included where a remote transport is instantiated.
//
// A link's operations are posted in order and complete in order. When the connection breaks, those
// under way fail: each of them may have been done at the peer or not. Both ends then sever the old
// connection, so that nothing of it arrives any more, and tell each other with the new one how many
// records they have taken. A record that was taken is not sent again, nor is a write before it,
// which was there before the record was: its destination may be in use again. All others are.
// An unordered endpoint knows of each write whether it arrived, and those that did not are sent
// again under their sequences.
#pragma once

#include <algorithm>

#include "remote_transport.h"

namespace epfabric::agent {

// Operations that are none of the network's.
inline uint32_t waits_of(const Link& link) { return link.gate ? link.gate->waits : 0; }

// Keeps what is needed to post the operation again.
template <Endpoint E>
void RemoteTransport<E>::remember(Operation* operation, const Piece* payload, bool record) {
  if constexpr (Mending<E>) {
    Link& link = *operation->link;
    operation->order = link.order++;
    if constexpr (Unordered<E>) operation->order = link.gate->departures.total();
    operation->payload = payload != nullptr ? *payload : Piece{};
    operation->record = record ? link.outbox.total() : kNoRecord;
  }
}

// Whether the failed operation waits for a new connection.
template <Endpoint E>
bool RemoteTransport<E>::hold(Operation* operation, const Completion& completion) {
  if constexpr (Mending<E>) {
    Link& link = *operation->link;
    bool may_pass = completion.error == kBroken;
    if constexpr (Movable<E>) may_pass = may_pass || endpoint_.lines(link.peer) > 0;
    if (!may_pass || link.broken || epoch_->left(link.rank)) return false;
    // The NIC may have applied it, and would do so again.
    if (operation->kind == Operation::Kind::kAtomic) return false;
    operation->lost = true;
    lost_ += 1;
    link.held += 1;
    return true;
  } else {
    return false;
  }
}

template <Endpoint E>
void RemoteTransport<E>::start_mending(PeerIndex peer)
  requires Mending<E>
{
  for (const auto& link : links_) {
    if (link->peer != peer || link->broken) continue;
    if (link->mend == Mend::kWhole) {
      link->broken_ns = now_ns_;
      mending_.push_back(link.get());
    }
    link->mend = Mend::kBroken;
  }
}

// The next step, if it is time for it. What the link is given up for, or "".
template <Endpoint E>
std::string RemoteTransport<E>::mend_link(Link& link)
  requires Mending<E>
{
  if (const std::string& fault = endpoint_.fault(link.peer); !fault.empty()) return fault;
  if (now_ns_ > link.broken_ns + limits_.stall_ns) {
    return "its connection broke (" + endpoint_.broken_by(link.peer) +
           ") and could not be made again in " + std::to_string(limits_.stall_ns / 1'000'000) +
           " ms";
  }
  switch (link.mend) {
    case Mend::kBroken:
      if (!endpoint_.sever(link.peer) || link.held + waits_of(link) != link.inflight) return "";
      if (std::string why = spent(link); !why.empty()) return why;
      endpoint_.remake(link.peer, {0, {static_cast<uint32_t>(link.inbox.total())}});
      link.mend = Mend::kMeeting;
      return "";
    case Mend::kMeeting:
      if (!endpoint_.met(link.peer)) return "";
      if constexpr (!Unordered<E>) {
        if (!link.outbox.acknowledge(endpoint_.told(link.peer).taken[0]))
          return "it took records that were never sent";
      }
      collect(link);
      link.tries += link.journal.empty() ? 0 : 1;
      link.mend = Mend::kReplaying;
      [[fallthrough]];
    case Mend::kReplaying:
      return replay(link);
    case Mend::kWhole:
      break;
  }
  return "";
}

// Why no connection is made anew any more. Each line that is used alone is tried as often as the
// first; lines that are used together have bounds of their own.
template <Endpoint E>
std::string RemoteTransport<E>::spent(const Link& link)
  requires Mending<E>
{
  if constexpr (Unordered<E>) {
    endpoint_.give_up(link.peer, limits_.tries);
    return endpoint_.fault(link.peer);
  }
  uint64_t lines = 1;
  if constexpr (Movable<E>) lines = endpoint_.lines(link.peer);
  if (link.tries >= limits_.tries * lines)
    return "its connection broke again and again (" + endpoint_.broken_by(link.peer) + ")";
  if constexpr (Movable<E>) {
    if (link.tries > 0 && link.tries % limits_.tries == 0) endpoint_.leave(link.peer);
  }
  return "";
}

// A NIC that goes takes many links at once: of these one is told of in a second, and all counted.
template <Endpoint E>
void RemoteTransport<E>::note_line(const Link& link)
  requires Mending<E>
{
  if constexpr (Movable<E>) {
    const std::string over = endpoint_.settled(link.peer);
    if (over.empty()) return;
    count_.moved.add(1);
    if (told_ns_ != 0 && now_ns_ - told_ns_ < kTellEveryNs) return;
    told_ns_ = now_ns_;
    epoch_->report({"moved",
                    epoch_->plan().group,
                    static_cast<int>(link.rank),
                    {},
                    "what rank " + std::to_string(shape_.rank) + " sends to rank " +
                        std::to_string(link.rank) + " " + over});
  }
}

// What has to be sent again, in order, into the journal; what the peer has is done.
template <Endpoint E>
void RemoteTransport<E>::collect(Link& link)
  requires Mending<E>
{
  link.journal.clear();
  link.replayed = 0;
  for (Operation& operation : operations_) {
    if (operation.link == &link && operation.lost) link.journal.push_back(&operation);
  }
  std::sort(link.journal.begin(), link.journal.end(), [](const Operation* a, const Operation* b) {
    return static_cast<int64_t>(a->order - b->order) < 0;
  });
  bool taken = false;  // a later record; whatever its ring: the connection kept the order
  for (size_t i = link.journal.size(); i-- > 0;) {
    Operation* operation = link.journal[i];
    if (!arrived(link, operation, taken)) continue;
    if (operation->ring != nullptr) operation->ring->part_done(operation->ticket);
    give_back(operation);
    link.journal[i] = nullptr;
  }
  std::erase(link.journal, nullptr);
}

// `taken`: whether a later one was.
template <Endpoint E>
bool RemoteTransport<E>::arrived(Link& link, Operation* operation, bool& taken)
  requires Mending<E>
{
  if constexpr (Unordered<E>) {
    const bool out = endpoint_.arrived(link.peer, operation);
    if (out && operation->kind == Operation::Kind::kCredit) link.gate->arrivals.credited();
    return out;
  } else {
    const bool record = operation->record != kNoRecord;
    taken = taken || (record && operation->record < link.outbox.acknowledged());
    return taken && (record || operation->kind == Operation::Kind::kPart);
  }
}

template <Endpoint E>
std::string RemoteTransport<E>::replay(Link& link)
  requires Mending<E>
{
  const size_t last = std::min(link.journal.size(), link.replayed + kReplaysAtOnce);
  for (; link.replayed < last; ++link.replayed) {
    Operation* operation = link.journal[link.replayed];
    // Over an unordered endpoint its sequence is awaited.
    if (!Unordered<E> && operation->abandoned && operation->record == kNoRecord) {
      give_back(operation);
      continue;
    }
    const ssize_t result = post_again(link, operation);
    if (result == -EAGAIN) return "";
    if (result != 0)
      return "a write to it cannot be posted again: " + E::text_of(static_cast<int>(-result));
    operation->lost = false;
    lost_ -= 1;
    link.held -= 1;
    count_.replayed.add(1);
  }
  if (last < link.journal.size()) return "";
  link.journal.clear();
  link.mend = Mend::kWhole;
  count_.mended.add(1);
  note_line(link);
  link.progress_ns = link.answered_ns = now_ns_;
  link.busy_since_ns = 0;
  return "";
}

template <Endpoint E>
ssize_t RemoteTransport<E>::post_again(Link& link, Operation* operation)
  requires Mending<E>
{
  if (operation->record == kNoRecord) {
    if constexpr (Unordered<E>) return announce_again(link, operation);
    if (operation->kind != Operation::Kind::kPart)
      return endpoint_.write_through(link.peer, scratch_of(link), operation);
    return endpoint_.write(link.peer, {&operation->payload, 1}, operation);
  }
  // It lies where it was staged: its slot is not free before it was taken.
  ControlRecord* record = link.outbox.staged(operation->record);
  // Its rank is masked: the number is used up, but nothing is said by it, nor sent with it. Over an
  // unordered endpoint an ATOMIC goes, since the other half of a CAS may be there already.
  const bool says = Unordered<E> ? record->kind == RecordKind::kSignal : is_order(record->kind);
  if (operation->abandoned && says) record->kind = RecordKind::kCredit;
  if (operation->abandoned) operation->payload = {};
  uint64_t consumed = link.inbox.total();
  auto sequence = static_cast<uint16_t>(operation->record);
  if constexpr (Unordered<E>) {
    consumed = link.gate->arrivals.tellable();
    sequence = static_cast<uint16_t>(operation->order);
  }
  record->consumed = static_cast<uint32_t>(consumed);
  const Piece staged = piece_of(link, record, operation->record);
  const Piece pieces[] = {operation->payload.bytes != 0 ? operation->payload : staged, staged};
  const size_t count = operation->payload.bytes != 0 ? 2 : 1;
  const uint32_t imm = pack_imm({kImmControl, link.domain, sequence});
  return endpoint_.write_with_imm(link.peer, {pieces, count}, imm, operation);
}

// What has no record, over an unordered endpoint. A credit says how far it is now.
template <Endpoint E>
ssize_t RemoteTransport<E>::announce_again(Link& link, Operation* operation)
  requires Mending<E>
{
  using Kind = Operation::Kind;
  const bool payload = operation->kind == Kind::kPart && !operation->abandoned;
  const Piece piece = payload ? operation->payload : scratch_of(link);
  if (operation->kind == Kind::kProbe) return endpoint_.write(link.peer, {&piece, 1}, operation);
  const bool credit = operation->kind == Kind::kCredit;
  Arrivals& arrivals = link.gate->arrivals;
  const uint32_t type = credit                             ? kImmCredit
                        : operation->kind == Kind::kRecord ? kImmAsk
                                                           : kImmPayload;
  const uint64_t value = credit ? arrivals.taken() : operation->order;
  const uint32_t imm = pack_imm({type, link.domain, static_cast<uint16_t>(value)});
  const ssize_t result = endpoint_.write_with_imm(link.peer, {&piece, 1}, imm, operation);
  if (credit && result == 0) arrivals.credit();
  return result;
}

}  // namespace epfabric::agent
