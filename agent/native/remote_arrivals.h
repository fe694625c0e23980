// What a remote transport does with an immediate that arrives: a record is taken once all before it
// was. Included by remote_transport.h.
#pragma once

#include <string>

#include "remote_transport.h"

namespace epfabric::agent {

template <Endpoint E>
template <class Take, class Fail>
void RemoteTransport<E>::take_imm(uint64_t data, Take&& take, Fail&& fail) {
  const Imm imm = unpack_imm(data);
  const bool known = imm.type == kImmControl || (Unordered<E> && imm.type - 1 < kImmCredit);
  if (data >> 32 != 0 || !known || imm.domain >= mailboxed_) {
    fail(-1, "a peer sent an immediate that means nothing: " + std::to_string(data));
    return;
  }
  Link& link = *links_[imm.domain];
  if constexpr (Unordered<E>) {
    take_arrival(link, imm, take, fail);
  } else {
    ControlRecord record;
    if (!link.inbox.take(imm.sequence, record)) {
      fail(static_cast<int>(link.rank),
           "it sent record " + std::to_string(imm.sequence) + " out of order");
      return;
    }
    if (const char* fault = take_record(link, record, take); fault != nullptr) {
      fail(static_cast<int>(link.rank), std::string("it sent a bad record: ") + fault);
      return;
    }
  }
  note_owed(link);
}

template <Endpoint E>
template <class Take>
const char* RemoteTransport<E>::take_record(Link& link, const ControlRecord& record, Take&& take) {
  count_.records_received.add(1);
  const char* fault = fault_of(record, view_of(link));
  if (fault != nullptr) return fault;
  if constexpr (Unordered<E>) {
    if (!link.gate->departures.acknowledge(record.consumed)) return "credit for what was not sent";
    note_acknowledged(link);
  } else {
    const uint64_t acknowledged = link.outbox.acknowledged();
    if (!link.outbox.acknowledge(record.consumed)) return "credit for what was not sent";
    if (link.outbox.acknowledged() != acknowledged) link.busy_since_ns = 0;
  }
  if (record.kind == RecordKind::kOld) {
    if (by_nic() || link.atomics == 0) return "an answer that nobody asked for";
    link.atomics -= 1;
    link.answered_ns = now_ns_;
  }
  return take(link, record);
}

template <Endpoint E>
void RemoteTransport<E>::note_owed(Link& link) {
  if (!owes(link) || link.owes) return;
  link.owes = true;
  owing_.push_back(&link);  // reserved for every link: no allocation
}

template <Endpoint E>
bool RemoteTransport<E>::owes(const Link& link) {
  if constexpr (Unordered<E>) {
    if (link.gate->arrivals.owes()) return true;
  }
  return link.inbox.owes_credit();
}

template <Endpoint E>
template <class Take, class Fail>
void RemoteTransport<E>::take_arrival(Link& link, const Imm& imm, Take&& take, Fail&& fail) {
  const int rank = static_cast<int>(link.rank);
  if (imm.type == kImmCredit) {
    if (!link.gate->departures.acknowledge(imm.sequence))
      return fail(rank, "it sent credit for what was not sent");
    return note_acknowledged(link);
  }
  Arrivals& arrivals = link.gate->arrivals;
  Step step = imm.type == kImmControl ? Step::kRecord
              : imm.type == kImmAsk   ? Step::kAsk
                                      : Step::kPayload;
  const Arrivals::Came came = arrivals.arrive(imm.sequence, step);
  if (came == Arrivals::Came::kOutside) {
    return fail(rank, "it sent sequence " + std::to_string(imm.sequence) +
                          ", which is outside of the window");
  }
  if (came == Arrivals::Came::kAgain) return;
  while (arrivals.next(step)) {
    if (step != Step::kRecord) continue;
    ControlRecord record;
    link.inbox.take(record);
    if (const char* fault = take_record(link, record, take); fault != nullptr)
      return fail(rank, std::string("it sent a bad record: ") + fault);
  }
}

}  // namespace epfabric::agent
