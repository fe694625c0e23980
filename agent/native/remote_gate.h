// What differs in posting between links that keep their writes' order and links that don't: the
// sequence of each operation, credit, and how delivery is learned. Included where a remote
// transport is instantiated.
#pragma once

#include "remote_transport.h"

namespace epfabric::agent {

// Whether a record may be posted now.
template <Endpoint E>
bool RemoteTransport<E>::may_post(Link& link, RecordKind kind) {
  bool room = link.outbox.room(kind);
  if constexpr (Unordered<E>) room = room && link.gate->departures.room();
  if (!room && link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
  return room;
}

// Of the next record.
template <Endpoint E>
uint32_t RemoteTransport<E>::next_imm(const Link& link) {
  uint16_t sequence = link.outbox.sequence();
  if constexpr (Unordered<E>) sequence = link.gate->departures.sequence();
  return pack_imm({kImmControl, link.domain, sequence});
}

template <Endpoint E>
bool RemoteTransport<E>::post_payload(Link& link, const Piece& payload, Operation* operation) {
  if constexpr (!Unordered<E>) {
    return posted(endpoint_.write(link.peer, {&payload, 1}, operation), operation);
  } else {
    Departures& departures = link.gate->departures;
    const uint32_t imm = pack_imm({kImmPayload, link.domain, departures.sequence()});
    const ssize_t result = departures.room()
                               ? endpoint_.write_with_imm(link.peer, {&payload, 1}, imm, operation)
                               : -EAGAIN;
    if (!posted(result, operation)) return false;
    departures.sent(Step::kPayload);
    return true;
  }
}

// Over an unordered endpoint it needs neither a slot nor a sequence, so that two full windows
// cannot wait for each other. The eight bytes that go with it mean nothing.
template <Endpoint E>
bool RemoteTransport<E>::post_credit(Link& link) {
  if constexpr (!Unordered<E>) {
    ControlRecord record;
    record.kind = RecordKind::kCredit;
    return post_record(link, record, Operation::Kind::kCredit, nullptr);
  } else {
    Arrivals& arrivals = link.gate->arrivals;
    if (!arrivals.may_credit()) return false;
    Operation* operation = take_operation(link, Operation::Kind::kCredit, nullptr, 8);
    if (operation == nullptr) return false;
    remember(operation, nullptr, false);
    const Piece scratch = scratch_of(link);
    const uint32_t imm =
        pack_imm({kImmCredit, link.domain, static_cast<uint16_t>(arrivals.taken())});
    if (!posted(endpoint_.write_with_imm(link.peer, {&scratch, 1}, imm, operation), operation))
      return false;
    arrivals.credit();
    link.inbox.credit();
    return true;
  }
}

// In its turn the peer says at once how far it has come.
template <Endpoint E>
bool RemoteTransport<E>::post_ask(Link& link) {
  Departures& departures = link.gate->departures;
  if (!departures.room()) {
    if (link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
    return false;
  }
  Operation* operation = take_operation(link, Operation::Kind::kRecord, nullptr, 8);
  if (operation == nullptr) return false;
  remember(operation, nullptr, false);
  const Piece scratch = scratch_of(link);
  const uint32_t imm = pack_imm({kImmAsk, link.domain, departures.sequence()});
  if (!posted(endpoint_.write_with_imm(link.peer, {&scratch, 1}, imm, operation), operation))
    return false;
  departures.sent(Step::kAsk);
  return true;
}

// What the link posted is delivered when credit covers it; one ask is enough for all who wait.
template <Endpoint E>
bool RemoteTransport<E>::await_credit(Link& link, Ring* ring) {
  if (waits_ >= kMostWaits) return false;
  if (link.marked < link.posted) {
    if (!post_ask(link)) return false;
    link.marked = link.posted;
    unmarked_.remove(link);
  }
  Operation* operation = take_operation(link, Operation::Kind::kWait, ring, 0);
  if (operation == nullptr) return false;
  waits_ += 1;
  operation->covers = link.posted;
  operation->next = nullptr;
  Gate& gate = *link.gate;
  (gate.waiting == nullptr ? gate.waiting : gate.last_waiting->next) = operation;
  gate.last_waiting = operation;
  gate.waits += 1;
  return true;
}

template <Endpoint E>
void RemoteTransport<E>::end_waits(Link& link, uint64_t delivered) {
  Gate& gate = *link.gate;
  while (gate.waiting != nullptr && gate.waiting->covers <= delivered) {
    Operation* operation = gate.waiting;
    gate.waiting = operation->next;
    waits_ -= 1;
    gate.waits -= 1;
    if (operation->ring != nullptr) operation->ring->part_done(operation->ticket);
    give_back(operation);
  }
}

// The link's departures say that more was acknowledged, or the same.
template <Endpoint E>
void RemoteTransport<E>::note_acknowledged(Link& link) {
  const Departures& departures = link.gate->departures;
  if (departures.acknowledged() == link.delivered) return;
  link.delivered = departures.acknowledged();
  link.progress_ns = now_ns_;
  link.busy_since_ns = 0;
  (void)link.outbox.acknowledge(static_cast<uint32_t>(departures.records_acknowledged()));
  end_waits(link, link.delivered);
  if (link.behind != 0 && link.delivered >= link.posted) caught_up(link);
}

}  // namespace epfabric::agent
