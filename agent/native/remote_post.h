// Posting and flow control of a remote transport. Included where one is instantiated.
#pragma once

#include <algorithm>
#include <cerrno>

#include "remote_atomics.h"
#include "remote_gate.h"
#include "remote_links.h"
#include "remote_mend.h"

namespace epfabric::agent {

template <Endpoint E>
Operation* RemoteTransport<E>::take_operation(Link& link, Operation::Kind kind, Ring* ring,
                                              uint64_t bytes) {
  if (free_.empty()) return nullptr;
  if constexpr (Mending<E>) {
    if (link.mend != Mend::kWhole) return nullptr;
  }
  Operation* operation = free_.back();
  free_.pop_back();
  operation->link = &link;
  operation->kind = kind;
  operation->ring = ring;
  operation->ticket = ring != nullptr ? ring->ticket() : 0;
  operation->bytes = bytes;
  if (link.inflight == 0) link.progress_ns = now_ns_;
  link.inflight += 1;
  link.inflight_bytes += bytes;
  if constexpr (Paced<E>) {
    line_free_ns_ = std::max(line_free_ns_, now_ns_) + bytes * endpoint_.line_ns_per_kib() / 1024;
    operation->posted_ns = now_ns_;
    operation->own_ns = line_free_ns_ - now_ns_;
  }
  count_.inflight.set(inflight());
  return operation;
}

template <Endpoint E>
void RemoteTransport<E>::give_back(Operation* operation) {
  abandoned_ -= operation->abandoned ? 1 : 0;
  if (operation->lost) {
    lost_ -= 1;
    operation->link->held -= 1;
  }
  operation->abandoned = operation->lost = false;
  operation->ring = nullptr;
  if constexpr (HardwareAtomics<E>) {
    if (operation->old != nullptr) results_.push_back(operation->old);
    operation->old = nullptr;
  }
  operation->link->inflight -= 1;
  operation->link->inflight_bytes -= operation->bytes;
  operation->link = nullptr;
  free_.push_back(operation);
  count_.inflight.set(inflight());
}

// Settles a post: false = busy, nothing happened. Another error is kept for watch() to report.
template <Endpoint E>
bool RemoteTransport<E>::posted(ssize_t result, Operation* operation) {
  Link& link = *operation->link;
  if (result == 0) {
    link.busy_since_ns = 0;
    const Operation::Kind kind = operation->kind;
    if (operation->ring != nullptr && kind != Operation::Kind::kMarker) {
      link.posted = Unordered<E> ? link.gate->departures.total() + 1 : link.posted + 1;
      behind_.add(link);
      unmarked_.add(link);
    }
    return true;
  }
  if (link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
  if (result != -EAGAIN && operation->kind != Operation::Kind::kCredit) {
    link.error = static_cast<int>(-result);
  }
  give_back(operation);
  return false;
}

// Off the path of commands. Operations stay where they are: the provider knows them by address.
template <Endpoint E>
void RemoteTransport<E>::add_operations(size_t count) {
  free_.reserve(operations_.size() + count);
  for (size_t i = 0; i < count; ++i) free_.push_back(&operations_.emplace_back());
  if constexpr (requires { endpoint_.reserve(count); }) endpoint_.reserve(operations_.size());
}

// The provider may hold an abandoned operation for minutes: others take its place. On a connection
// that is made anew it is held too: its record is one of the numbers that the peer awaits.
template <Endpoint E>
void RemoteTransport<E>::abandon(uint32_t rank) {
  const uint64_t before = abandoned_;
  for (Operation& operation : operations_) {
    if (operation.link == nullptr || operation.link->rank != rank || operation.abandoned) continue;
    if (operation.kind == Operation::Kind::kWait) continue;
    if (operation.ring != nullptr && operation.kind == Operation::Kind::kMarker) {
      operation.ring->part_done(operation.ticket);  // of a DRAIN, which covers others too
    } else if (operation.ring != nullptr) {
      operation.ring->part_masked(operation.ticket);
    }
    operation.ring = nullptr;
    if (operation.lost && operation.link->broken) {
      give_back(&operation);
    } else {
      operation.abandoned = true;
      abandoned_ += 1;
    }
  }
  add_operations(abandoned_ - before);
  for (const auto& link : links_) {
    if (link->rank != rank) continue;
    caught_up(*link);
    if (Unordered<E>) end_waits(*link, UINT64_MAX);
  }
  count_.inflight.set(inflight());
}

template <Endpoint E>
void RemoteTransport<E>::stop_trying() {
  for (const auto& link : links_) link->busy_since_ns = 0;
}

// Nobody waits for what was lost of ranks that left in good order after all, or that are masked and
// given up.
template <Endpoint E>
void RemoteTransport<E>::release_lost() {
  for (Operation& operation : operations_) {
    if (!operation.lost) continue;
    const Link& link = *operation.link;
    if (!epoch_->left(link.rank) && !(link.broken && epoch_->gone(link.rank))) continue;
    if (operation.ring != nullptr) operation.ring->part_done(operation.ticket);
    give_back(&operation);
  }
}

template <Endpoint E>
Posted RemoteTransport<E>::write(const WritePart& part, const SignalPart* then) {
  Link& link = *to_rank_[part.rank];
  const uint64_t most = endpoint_.max_bytes() - sizeof(ControlRecord);
  const uint64_t bytes = std::min(part.bytes, most);
  const bool full = link.inflight >= link.cap || inflight() >= limits_.session_inflight ||
                    (link.inflight > 0 && link.inflight_bytes + bytes > link.cap_bytes);
  if (full) return busy(link);
  const Joining& joining = limits_.joining;
  if (link.inflight >= joining.busy && part.ring->may_grow(joining)) return {};
  const Region& from = *regions_[part.source_region];
  const RemoteKey& to = (*link.regions)[part.destination_region];
  const Extent& extent = epoch_->blob(part.rank).regions[part.destination_region];
  const Piece payload{from.at(part.source), region_keys_[part.source_region].descriptor, bytes,
                      to.base + (part.destination - extent.begin), to.key};
  if (then != nullptr && bytes == part.bytes && endpoint_.gathers()) {
    ControlRecord record = record_of(*then);
    if (!post_record(link, record, Operation::Kind::kPart, part.ring, &payload)) return {};
    return {bytes, true, true};
  }
  Operation* operation = take_operation(link, Operation::Kind::kPart, part.ring, bytes);
  if (operation == nullptr) return {};
  remember(operation, &payload, false);
  if (!post_payload(link, payload, operation)) return {};
  return {bytes, true};
}

// The link's cap is reached.
template <Endpoint E>
Posted RemoteTransport<E>::busy(Link& link) {
  link.pace.press();
  return {};
}

template <Endpoint E>
ControlRecord RemoteTransport<E>::record_of(const SignalPart& part) {
  ControlRecord record;
  record.kind = RecordKind::kSignal;
  record.ring = static_cast<uint8_t>(part.ring->index());
  record.index = static_cast<uint16_t>(part.index);
  record.value = part.value;
  return record;
}

template <Endpoint E>
Posted RemoteTransport<E>::signal(const SignalPart& part) {
  Link& link = *to_rank_[part.rank];
  if (link.inflight >= link.cap || inflight() >= limits_.session_inflight) return busy(link);
  ControlRecord record = record_of(part);
  if (!post_record(link, record, Operation::Kind::kRecord, part.ring)) return {};
  return {1, true};
}

template <Endpoint E>
bool RemoteTransport<E>::send(uint32_t rank, ControlRecord record) {
  return post_record(*to_rank_[rank], record, Operation::Kind::kRecord, nullptr);
}

template <Endpoint E>
void RemoteTransport<E>::send_credits() {
  if (!answering_.empty()) send_answers();
  for (size_t i = 0; i < owing_.size();) {
    Link& link = *owing_[i];
    if (owes(link) && !link.broken && !epoch_->left(link.rank) && !post_credit(link)) {
      ++i;  // busy
      continue;
    }
    link.owes = false;
    owing_[i] = owing_.back();
    owing_.pop_back();
  }
}

// Posts the record, behind `payload` in one operation where there is one.
template <Endpoint E>
bool RemoteTransport<E>::post_record(Link& link, ControlRecord& record, Operation::Kind kind,
                                     Ring* ring, const Piece* payload) {
  if (!may_post(link, record.kind)) return false;
  const uint64_t bytes = sizeof(ControlRecord) + (payload != nullptr ? payload->bytes : 0);
  Operation* operation = take_operation(link, kind, ring, bytes);
  if (operation == nullptr) return false;
  remember(operation, payload, true);
  record.source = static_cast<uint16_t>(shape_.rank);
  record.destination = static_cast<uint16_t>(link.rank);
  record.epoch = epoch_->plan().epoch;
  uint64_t consumed = link.inbox.total();
  if constexpr (Unordered<E>) consumed = link.gate->arrivals.tellable();
  record.consumed = static_cast<uint32_t>(consumed);
  const Piece staged = piece_of(link, link.outbox.stage(record), link.outbox.total());
  const Piece pieces[] = {payload != nullptr ? *payload : staged, staged};
  const size_t count = payload != nullptr ? 2 : 1;
  const ssize_t result =
      endpoint_.write_with_imm(link.peer, {pieces, count}, next_imm(link), operation);
  if (!posted(result, operation)) return false;
  link.outbox.sent();
  link.inbox.credit();
  if constexpr (Unordered<E>) {
    link.gate->departures.sent(Step::kRecord);
    link.gate->arrivals.told(consumed);
  }
  count_.records_sent.add(1);
  return true;
}

// From where a record is staged to its slot at the peer.
template <Endpoint E>
Piece RemoteTransport<E>::piece_of(const Link& link, const ControlRecord* staged,
                                   uint64_t number) const {
  const uint64_t slot = number & (kMailboxSlots - 1);
  return {staged, staging_key_.descriptor, sizeof(ControlRecord),
          link.mailbox.base + slot * sizeof(ControlRecord), link.mailbox.key};
}

// Eight bytes that nobody reads, to the page behind the peer's mailboxes.
template <Endpoint E>
Piece RemoteTransport<E>::scratch_of(const Link& link) const {
  const uint64_t room = room_for_domains(shape_.world, epoch_->proxies_of(link.rank));
  const RemoteKey& mailbox = epoch_->blob(link.rank).proxies[link.proxy].mailbox;
  return {staging_.data() + uint64_t{domains_} * kMailboxBytes, staging_key_.descriptor, 8,
          mailbox.base + room * kMailboxBytes, mailbox.key};
}

// The marker completes when it, and with it everything before it, is visible at the peer.
template <Endpoint E>
bool RemoteTransport<E>::post_marker(Link& link, Ring* ring) {
  if constexpr (Unordered<E>) return await_credit(link, ring);
  Operation* operation = take_operation(link, Operation::Kind::kMarker, ring, 8);
  if (operation == nullptr) return false;
  remember(operation, nullptr, false);
  operation->covers = link.posted;
  if (!posted(endpoint_.write_through(link.peer, scratch_of(link), operation), operation))
    return false;
  link.marked = link.posted;
  unmarked_.remove(link);
  return true;
}

template <Endpoint E>
bool RemoteTransport<E>::drain(Ring& ring, uint64_t& serial) {
  if (behind_.empty()) return true;
  auto& cursor = draining_[ring.index()];
  if (serial == 0) {
    serial = ++drains_;
    cursor = {};
  }
  while (Link* link = behind_.at(cursor)) {
    if (epoch_->gone(link->rank)) {
      caught_up(*link);
      continue;
    }
    if (link->drain != serial) {
      if (!post_marker(*link, &ring)) return false;
      ring.add_part();
      link->drain = serial;
    }
    cursor.pass();
  }
  return true;
}

template <Endpoint E>
void RemoteTransport<E>::flush() {
  for (size_t looks = 0; looks < detail::kMaxBatch; ++looks) {
    Link* link = unmarked_.at(flushing_);
    if (link == nullptr) {
      flushing_ = {};
      return;
    }
    if (epoch_->gone(link->rank)) {
      caught_up(*link);
    } else if (!post_marker(*link, nullptr)) {
      flushing_.pass();  // busy: another one's turn
    }
  }
}

// Nothing that the link posted is under way any more; whoever left takes nothing.
template <Endpoint E>
void RemoteTransport<E>::caught_up(Link& link) {
  link.delivered = link.posted;
  behind_.remove(link);
  unmarked_.remove(link);
}

template <Endpoint E>
RecordView RemoteTransport<E>::view_of(const Link& link) const {
  return {epoch_->plan().epoch,          link.rank,  shape_.rank,  shape_.rings, shape_.signals,
          epoch_->proxies_of(link.rank), link.proxy, own_proxies_, index_};
}

}  // namespace epfabric::agent
