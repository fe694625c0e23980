// The ring of slots, producer and consumer: one idea, two ends. A producer is one GPU thread (or
// warp) or one CPU thread; the consumer is the ring's proxy. docs/fifo.md holds the proof of the
// ordering.
#pragma once

#include "command.h"

namespace epfabric {

inline constexpr uint32_t kMaxBatch = 8;

// The lap bit of the slot with ticket t, in place: memory starts as zeros, so the first lap
// writes 1. `depth` is a power of two.
EPF_HOST_DEVICE constexpr uint64_t lap_of(uint64_t ticket, uint32_t depth) {
  return (ticket & depth) ? 0 : kLapBit;
}

// The producing end. Held by one thread at a time; `head` and `cached_tail` live with the producer.
struct Producer {
  Slot* slots;
  const uint64_t* tail;  // in the agent segment
  uint64_t head;         // ticket of the next slot
  uint64_t cached_tail;
  uint32_t depth;

  // Pushes `count` (≤ kMaxBatch) commands or none; true when pushed, their tickets being the old
  // head onwards. The caller's earlier stores are visible to whoever acts on these commands: one
  // fence pays for the batch.
  EPF_HOST_DEVICE bool try_push(const Slot* commands, uint32_t count) {
    if (head + count - cached_tail > depth) {
      cached_tail = platform::load_relaxed(tail);  // partner: the proxy's store of tail
      if (head + count - cached_tail > depth) return false;
    }
    platform::fence_release();  // partner: fence_acquire() in Consumer::peek()
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t lap = lap_of(head, depth);
      uint64_t* slot = &slots[head & (depth - 1)].lo;
      platform::store_relaxed_pair(slot, commands[i].lo | lap, commands[i].hi | lap);
      ++head;
    }
    return true;
  }
};

// The consuming end: the ring's proxy. It stores nothing into the slots.
struct Consumer {
  const Slot* slots;
  uint64_t next;  // ticket of the next slot to take
  uint32_t depth;

  // Copies the slot `ahead` places after the next one, without its lap bits, if its producer has
  // published both halves. The copy is the only read: act on nothing else.
  EPF_HOST_DEVICE bool peek(uint32_t ahead, Slot& out) const {
    const uint64_t ticket = next + ahead;
    const Slot* slot = &slots[ticket & (depth - 1)];
    const uint64_t lap = lap_of(ticket, depth);
    const uint64_t lo = platform::load_relaxed(&slot->lo);  // partner: store_relaxed_pair()
    const uint64_t hi =
        platform::load_relaxed(&slot->hi);  // in either order: each half has its lap
    if (((lo ^ lap) | (hi ^ lap)) & kLapBit) return false;
    platform::fence_acquire();  // partner: fence_release() in Producer::try_push()
    out.lo = lo & ~kLapBit;
    out.hi = hi & ~kLapBit;
    return true;
  }
};

// The words that end a wait early: the pod's own and the agent's.
struct AbortWords {
  const uint64_t* pod;
  const uint64_t* agent;
  EPF_HOST_DEVICE bool set() const {
    return platform::load_relaxed(pod) != 0 || platform::load_relaxed(agent) != 0;
  }
};

enum class Waited : uint8_t { kDone, kAborted, kTimedOut };

// Waits until *word >= value (a counter or a signal word, which only grow), looking at the abort
// words and the clock every 64th time. What the word's writer did before is visible after kDone.
EPF_HOST_DEVICE inline Waited wait_at_least(const uint64_t* word, uint64_t value,
                                            const AbortWords& aborts, uint64_t timeout_ns) {
  const uint64_t begin = platform::clock_ns();
  for (uint32_t look = 0;; ++look) {
    if (platform::load_acquire(word) >= value) return Waited::kDone;
    if ((look & 63) == 63) {
      if (aborts.set()) return Waited::kAborted;
      if (platform::clock_ns() - begin > timeout_ns) return Waited::kTimedOut;
    }
    platform::pause(look);
  }
}

}  // namespace epfabric
