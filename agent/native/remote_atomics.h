// ATOMICs of a remote transport: those that the owner's agent applies, by an order through its
// mailbox and an answer, and those that its NIC applies. Included where one is instantiated.
#pragma once

#include <algorithm>

#include "remote_transport.h"

namespace epfabric::agent {

// At most kMaxAtomics of a link wait for an answer.
template <Endpoint E>
Applied RemoteTransport<E>::atomic(const AtomicPart& part) {
  Link& link = *to_rank_[part.atomic->rank];
  if (link.atomics >= kMaxAtomics || link.inflight >= limits_.inflight ||
      inflight() >= limits_.session_inflight)
    return {};
  if (by_nic() ? !post_atomic(link, part) : !post_order(link, part)) return {};
  if (link.atomics == 0) link.answered_ns = now_ns_;
  link.atomics += 1;
  return {Applied::How::kSent};
}

// An ADD is one record, a CAS two.
template <Endpoint E>
bool RemoteTransport<E>::post_order(Link& link, const AtomicPart& part) {
  const Atomic& atomic = *part.atomic;
  ControlRecord record;
  record.ring = static_cast<uint8_t>(part.ring->index());
  record.index = static_cast<uint16_t>(part.ring->ticket());
  if (*part.sent == 0) {
    record.kind = part.cas ? RecordKind::kExpect : RecordKind::kAdd;
    record.value = atomic.operand;
    record.extra = atomic.word;
    if (!post_record(link, record, Operation::Kind::kRecord, nullptr)) return false;
    *part.sent = 1;
  }
  if (!part.cas) return true;
  record.kind = RecordKind::kSwap;
  record.value = atomic.swap;
  record.extra = 0;
  return post_record(link, record, Operation::Kind::kRecord, nullptr);
}

// On the queue pair of its (ring, destination rank), behind what was posted there before.
template <Endpoint E>
bool RemoteTransport<E>::post_atomic(Link& link, const AtomicPart& part) {
  if constexpr (HardwareAtomics<E>) {
    if (results_.empty()) return false;
    const Atomic& atomic = *part.atomic;
    Operation* operation =
        take_operation(link, Operation::Kind::kAtomic, nullptr, sizeof(uint64_t));
    if (operation == nullptr) return false;
    operation->asker = part.ring;
    operation->ticket = part.ring->ticket();
    operation->old = results_.back();
    results_.pop_back();
    const RemoteKey& to = (*link.regions)[part.region];
    const Extent& extent = epoch_->blob(link.rank).regions[part.region];
    const Piece word{operation->old, staging_key_.descriptor, sizeof(uint64_t),
                     to.base + (atomic.word * kWordBytes - extent.begin), to.key};
    return posted(
        part.cas ? endpoint_.compare_swap(link.peer, word, atomic.operand, atomic.swap, operation)
                 : endpoint_.fetch_add(link.peer, word, atomic.operand, operation),
        operation);
  } else {
    return false;
  }
}

// A ring that awaits it no more, since the rank is masked or has left, throws it away.
template <Endpoint E>
void RemoteTransport<E>::take_old(const Operation& operation, bool applied) {
  Link& link = *operation.link;
  link.atomics -= 1;
  link.answered_ns = now_ns_;
  if (applied) operation.asker->take_answer(operation.ticket & 0xffff, link.rank, *operation.old);
}

template <Endpoint E>
const char* RemoteTransport<E>::answer(Link& link, const ControlRecord& record) {
  ControlRecord now = record;
  if (link.unsent == 0 && post_record(link, now, Operation::Kind::kRecord, nullptr)) return nullptr;
  if (link.unsent == kMaxAtomics) return "more ATOMICs than may wait for an answer";
  if (link.unsent == 0) answering_.push_back(&link);  // reserved for every link: no allocation
  link.answers[link.unsent++] = record;
  return nullptr;
}

template <Endpoint E>
void RemoteTransport<E>::send_answers() {
  std::erase_if(answering_, [this](Link* link) {
    if (link->broken || epoch_->gone(link->rank)) link->unsent = 0;
    uint32_t sent = 0;
    while (sent < link->unsent &&
           post_record(*link, link->answers[sent], Operation::Kind::kRecord, nullptr))
      ++sent;
    std::copy(link->answers.begin() + sent, link->answers.begin() + link->unsent,
              link->answers.begin());
    link->unsent -= sent;
    return link->unsent == 0;
  });
}

}  // namespace epfabric::agent
