// ATOMICs of a remote transport that the owner's agent applies: an order through its mailbox, and
// its answer. Included where one is instantiated.
#pragma once

#include <algorithm>

#include "remote_transport.h"

namespace epfabric::agent {

// An ADD is one record, a CAS two. At most kMaxAtomics of a link wait for an answer.
template <Endpoint E>
Applied RemoteTransport<E>::atomic(const AtomicPart& part) {
  const Atomic& atomic = *part.atomic;
  Link& link = *to_rank_[atomic.rank];
  if (link.atomics >= kMaxAtomics || link.inflight >= limits_.inflight ||
      inflight() >= limits_.session_inflight)
    return {};
  ControlRecord record;
  record.ring = static_cast<uint8_t>(part.ring->index());
  record.index = static_cast<uint16_t>(part.ring->ticket());
  if (*part.sent == 0) {
    record.kind = part.cas ? RecordKind::kExpect : RecordKind::kAdd;
    record.value = atomic.operand;
    record.extra = atomic.word;
    if (!post_record(link, record, Operation::Kind::kRecord, nullptr)) return {};
    *part.sent = 1;
  }
  if (part.cas) {
    record.kind = RecordKind::kSwap;
    record.value = atomic.swap;
    record.extra = 0;
    if (!post_record(link, record, Operation::Kind::kRecord, nullptr)) return {};
  }
  if (link.atomics == 0) link.answered_ns = now_ns_;
  link.atomics += 1;
  return {Applied::How::kSent};
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
