// A rank as a kernel sees it: its rings, what the agent tells of them, the signal words. Filled by
// epfabric.cuda (a Python mirror of DeviceRank is checked against this one), used by every kernel.
#pragma once

#include "layout.h"
#include "push.cuh"

namespace epfabric {

// How an ATOMIC ended. Known: `old` is what its word held before it; a CAS stored its value where
// that is what it expected. Else, after kDone, it has no answer: it was refused, or its rank is
// masked, and then it may have taken effect all the same. Or its place was taken by a later one:
// nobody may push as many slots as the ring is deep behind an ATOMIC before it was read.
struct AtomicEnd {
  Waited waited;
  bool known;
  uint64_t old;
};

struct DeviceRank {
  unsigned char* pod;          // pod segment, as the GPU maps it
  const unsigned char* agent;  // agent segment, as the GPU maps it
  uint64_t* heads;             // GPU memory, by ring
  uint64_t* seen_tails;        // GPU memory, by ring
  uint64_t timeout_ns;         // of every wait
  uint32_t rings;
  uint32_t depth;
  uint32_t signals;
  uint32_t world;
  uint32_t rank;
  uint32_t reserved;

  EPF_DEVICE Layout layout() const { return layout_of(rings, depth, signals, world); }

  EPF_DEVICE const RingCounters* counters(uint32_t ring) const {
    return reinterpret_cast<const RingCounters*>(agent + layout().counters) + ring;
  }

  EPF_DEVICE DeviceRing ring(uint32_t index) const {
    Slot* slots = reinterpret_cast<Slot*>(pod + layout().slots) + uint64_t{index} * depth;
    return {slots, &counters(index)->tail, heads + index, seen_tails + index, depth};
  }

  // The word that (source rank, ring) writes here.
  EPF_DEVICE const uint64_t* signal(uint32_t source, uint32_t ring, uint32_t word) const {
    const uint64_t index = (uint64_t{source} * rings + ring) * signals + word;
    return reinterpret_cast<const uint64_t*>(agent + layout().signals) + index;
  }

  EPF_DEVICE Bounds bounds() const {
    return {{&reinterpret_cast<const PodHeader*>(pod)->abort,
             &reinterpret_cast<const AgentHeader*>(agent)->abort},
            timeout_ns};
  }

  // Whether the command's source may be reused. Never blocks.
  EPF_DEVICE bool completed(uint32_t ring, uint64_t ticket) const {
    return platform::load_acquire(&counters(ring)->completed) > ticket;
  }

  EPF_DEVICE Waited wait_completed(uint32_t ring, uint64_t ticket) const {
    const Bounds until = bounds();
    return wait_at_least(&counters(ring)->completed, ticket + 1, until.aborts, until.timeout_ns);
  }

  // By its ticket, that of the first slot of a CAS.
  EPF_DEVICE AtomicEnd wait_atomic(uint32_t ring, uint64_t ticket) const {
    const Waited waited = wait_completed(ring, ticket);
    if (waited != Waited::kDone) return {waited, false, 0};
    const auto* results = reinterpret_cast<const AtomicResult*>(agent + layout().results);
    AtomicEnd end{waited, false, 0};
    end.known = results[uint64_t{ring} * depth + (ticket & (depth - 1))].read(ticket, end.old);
    return end;
  }

  // What the writer wrote before its word reached `value` is readable after kDone.
  EPF_DEVICE Waited wait_signal(uint32_t source, uint32_t ring, uint32_t word,
                                uint64_t value) const {
    const Bounds until = bounds();
    return wait_at_least(signal(source, ring, word), value, until.aborts, until.timeout_ns);
  }

  // Whether the agent told that a rank is lost; what came from it before is then visible.
  EPF_DEVICE bool masked(uint32_t other) const {
    const auto* words = reinterpret_cast<const uint64_t*>(agent + layout().mask);
    return (platform::load_acquire(words + other / 64) >> other % 64 & 1) != 0;
  }

  EPF_DEVICE bool any_masked() const {
    const auto* words = reinterpret_cast<const uint64_t*>(agent + layout().mask);
    uint64_t lost = 0;
    for (uint32_t i = 0; i < (world + 63) / 64; ++i) lost |= platform::load_acquire(words + i);
    return lost != 0;
  }

  // By one thread: waits until everything pushed to the ring so far is readable at its targets.
  EPF_DEVICE Waited drain(uint32_t index) const {
    const DeviceRing to = ring(index);
    const uint64_t until = platform::load_device(to.head);
    const Pushed pushed = push_one(to, pack_drain(until), bounds());
    return pushed.waited == Waited::kDone ? wait_completed(index, pushed.ticket) : pushed.waited;
  }

  // By a whole warp, when no other warp pushes: drains every ring, enters, and returns when every
  // rank has entered. No read after kDone returns older data than what was written before.
  // `rail`: only the ranks with this one's place on their nodes.
  EPF_DEVICE Waited barrier(bool rail = false) const {
    uint64_t worst = static_cast<uint64_t>(Waited::kDone);
    for (uint32_t first = 0; first < rings; first += platform::kWarpSize) {
      const uint32_t index = first + platform::lane();
      if (index < rings) {
        const uint64_t one = static_cast<uint64_t>(drain(index));
        worst = one > worst ? one : worst;
      }
    }
    const uint64_t failed = platform::ballot(worst != static_cast<uint64_t>(Waited::kDone));
    if (failed != 0) {
      return static_cast<Waited>(platform::broadcast(worst, platform::lowest_bit(failed)));
    }
    uint64_t waited = 0;
    if (platform::lane() == 0) {
      const Pushed pushed = push_one(ring(0), pack_barrier(rail), bounds());
      waited = static_cast<uint64_t>(
          pushed.waited == Waited::kDone ? wait_completed(0, pushed.ticket) : pushed.waited);
    }
    waited = platform::broadcast(waited, 0);
    platform::warp_barrier();
    platform::fence_acquire();  // by every lane: what lane 0 has seen
    return static_cast<Waited>(waited);
  }
};
static_assert(sizeof(DeviceRank) == 64);

}  // namespace epfabric
