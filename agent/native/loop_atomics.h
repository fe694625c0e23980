// The part of a proxy's loop that serves ATOMICs: the session's own, from the ring to the result,
// and those that peers ask of its rank's words. Included by loop_commands.h.
#pragma once

#include <algorithm>

#include "atomics.h"
#include "loop.h"

namespace epfabric::agent {

// On a word of this node's ranks at once, by this thread, unless NICs apply this epoch's; else by
// the agent of its owner, or its NIC.
template <class Remote>
bool Loop<Remote>::advance_atomic(Ring& ring, Held& held) {
  const Command& command = held.command;
  const uint32_t rank = command.atomic.rank;
  if (epoch_->state(rank) != kPresent) return pass_over(ring, rank);
  const AtomicPart part{&ring, &command.atomic, command.op == Op::kCas, command.destination_region,
                        &held.sent};
  const bool here = loopback_.serves(rank) && !remote_.by_nic();
  const uint8_t to = command.destination_region;
  const bool touches = here ? loopback_.may_change(rank, to)
                            : remote_.by_nic() || (epoch_->blob(rank).foreign >> to & 1) == 0;
  if (!touches) {  // the CPU that would have to apply it
    ring.give_up(Refusal::kUnsupported);
    return true;
  }
  const Applied applied = here ? loopback_.atomic(part) : remote_.atomic(part);
  if (applied.how == Applied::How::kBusy) return false;
  if (applied.how == Applied::How::kDone) {
    ring.answer(applied.old);
  } else {
    ring.await_answer(rank);
  }
  ring.finish();
  return true;
}

// A peer's ATOMIC on a word of this rank. The peer's agent has checked the word, as this one would.
// Of a rank that is masked here none is applied any more.
template <class Remote>
const char* Loop<Remote>::take_order(Link& link, const ControlRecord& record) {
  if (remote_.by_nic()) return "an ATOMIC for this agent, though NICs apply them";
  if (epoch_->masked(link.rank)) return nullptr;
  CasHalf& first = link.expected[record.ring / epoch_->proxies_of(link.rank)];
  if (record.kind == RecordKind::kExpect) {
    first = {record.value, record.extra, true};
    return nullptr;
  }
  const bool cas = record.kind == RecordKind::kSwap;
  if (cas && !first.there) return "half a CAS";
  const uint64_t word = cas ? first.word : record.extra;
  if (word > field::kLow33) return "a word that does not exist";
  for (const Region& region : proxy_.regions_) {
    const uint64_t at = word * kWordBytes;
    if (at < region.extent.begin || at + kWordBytes > region.extent.end) continue;
    if (region.foreign()) return "an ATOMIC on GPU memory, which NICs alone may change";
    ControlRecord answer;
    answer.kind = RecordKind::kOld;
    answer.ring = record.ring;
    answer.index = record.index;
    answer.value = apply(region.at(at), cas, cas ? first.value : record.value, record.value);
    first.there = false;
    return remote_.answer(link, answer);
  }
  return "a word that does not exist";
}

template <class Remote>
const char* Loop<Remote>::take_answer(const Link& link, const ControlRecord& record) {
  if (epoch_->masked(shape_.rank)) return nullptr;  // its ATOMICs are complete already
  const auto ring = std::find_if(order_.begin(), order_.end(), [&record](const Ring* candidate) {
    return candidate->index() == record.ring;
  });
  const bool awaited =
      ring != order_.end() && (*ring)->take_answer(record.index, link.rank, record.value);
  // A masked rank's ATOMICs are complete already, and so are those of one that left.
  return awaited || epoch_->gone(link.rank) ? nullptr : "an answer that no ring awaits";
}

}  // namespace epfabric::agent
