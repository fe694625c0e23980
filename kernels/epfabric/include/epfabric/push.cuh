// How a GPU pushes: by one thread or by a whole warp at once, into a ring that one warp owns or
// that many warps share. For kernels. A ring's head lies in GPU memory and outlives the kernel: the
// next launch goes on from there. A ring that is shared must have a depth of a warp at least.
#pragma once

#include "fifo.h"
#include "platform_gpu.cuh"

namespace epfabric {

// What a kernel knows of one ring. Shared: any warp pushes at any time.
struct DeviceRing {
  Slot* slots;           // pod segment, host memory
  const uint64_t* tail;  // agent segment, host memory
  uint64_t* head;        // GPU memory: ticket of the next slot that nobody has
  uint64_t* seen_tail;   // GPU memory: `tail` as some warp saw it; never more than it is
  uint32_t depth;
};

// What ends a wait.
struct Bounds {
  AbortWords aborts;
  uint64_t timeout_ns;
};

// kDone: `ticket` is the command's. Otherwise nobody may push to this ring any more: its place was
// taken and stays empty, so that the proxy waits there. The session has to be given up.
struct Pushed {
  Waited waited;
  uint64_t ticket;
};

namespace detail {

// Waits until the slots of all tickets below `end` are free.
EPF_DEVICE inline Waited await_room(const DeviceRing& ring, uint64_t end, const Bounds& bounds) {
  if (end <= platform::load_device(ring.seen_tail) + ring.depth) return Waited::kDone;
  const uint64_t least = end - ring.depth;
  const Waited waited = wait_at_least(ring.tail, least, bounds.aborts, bounds.timeout_ns);
  if (waited != Waited::kDone) return waited;
  // Partner: the fence of whoever reads it here and then stores a slot.
  platform::fence_release();
  platform::store_device(ring.seen_tail, least);
  return Waited::kDone;
}

EPF_DEVICE inline void store_slot(Slot* slots, uint32_t depth, uint64_t ticket,
                                  const Slot& command) {
  const uint64_t lap = lap_of(ticket, depth);
  platform::store_relaxed_pair(&slots[ticket & (depth - 1)].lo, command.lo | lap, command.hi | lap);
}

// Tickets that follow each other, and room for all of them before the first slot is stored.
EPF_DEVICE inline Pushed push_slots(const DeviceRing& ring, const Slot* slots, uint32_t count,
                                    const Bounds& bounds) {
  const uint64_t ticket = platform::fetch_add_device(ring.head, count);
  const Waited waited = await_room(ring, ticket + count, bounds);
  if (waited != Waited::kDone) return {waited, ticket};
  platform::fence_release();  // partner: fence_acquire() in Consumer::peek()
  for (uint32_t i = 0; i < count; ++i) store_slot(ring.slots, ring.depth, ticket + i, slots[i]);
  return {Waited::kDone, ticket};
}

}  // namespace detail

// One thread pushes one command; the fence covers its own payload and what it has seen of others'.
EPF_DEVICE inline Pushed push_one(const DeviceRing& ring, const Slot& command,
                                  const Bounds& bounds) {
  return detail::push_slots(ring, &command, 1, bounds);
}

// One thread pushes a CAS, as pack_cas() makes it: no other command comes between its slots,
// whoever else pushes. Its ticket is the first one's.
EPF_DEVICE inline Pushed push_pair(const DeviceRing& ring, const Slot (&pair)[2],
                                   const Bounds& bounds) {
  return detail::push_slots(ring, pair, 2, bounds);
}

// A whole warp pushes the commands of those lanes that want to, in the order of the lanes: one
// fetch-and-add, one fence for the payload that any lane wrote, neighbouring slots in one go. Every
// lane gets the result; its ticket means something where it wanted to. Two lanes, of which none
// between them wants to, may push the slots of a CAS.
EPF_DEVICE inline Pushed push_warp(const DeviceRing& ring, const Slot& command, bool wanted,
                                   const Bounds& bounds) {
  const uint64_t lanes = platform::ballot(wanted);
  if (lanes == 0) return {Waited::kDone, 0};
  const uint32_t count = platform::count_bits(lanes);
  const uint32_t first = platform::lowest_bit(lanes);
  const uint32_t me = platform::lane();
  uint64_t base = 0;
  uint64_t waited = 0;
  if (me == first) {
    base = platform::fetch_add_device(ring.head, count);
    waited = static_cast<uint64_t>(detail::await_room(ring, base + count, bounds));
  }
  base = platform::broadcast(base, first);
  waited = platform::broadcast(waited, first);
  const uint64_t ticket = base + platform::count_bits(lanes & ((uint64_t{1} << me) - 1));
  if (static_cast<Waited>(waited) != Waited::kDone) return {static_cast<Waited>(waited), ticket};
  platform::warp_barrier();
  platform::fence_release();  // by every lane, since every lane stores; the warp pays it once
  if (wanted) detail::store_slot(ring.slots, ring.depth, ticket, command);
  return {Waited::kDone, ticket};
}

// The end of a ring that one warp owns, held alike by all of its lanes: no atomics, and the tail is
// looked at only when the ring seems full.
struct WarpProducer {
  Slot* slots;
  const uint64_t* tail;
  uint64_t head;
  uint64_t cached_tail;
  uint32_t depth;

  EPF_DEVICE explicit WarpProducer(const DeviceRing& ring)
      : slots(ring.slots),
        tail(ring.tail),
        head(platform::load_device(ring.head)),
        cached_tail(platform::load_device(ring.seen_tail)),
        depth(ring.depth) {}

  // As push_warp(); after a wait that failed nothing was pushed, and the ring is whole.
  EPF_DEVICE Pushed push(const Slot& command, bool wanted, const Bounds& bounds) {
    const uint64_t lanes = platform::ballot(wanted);
    const uint32_t count = platform::count_bits(lanes);
    const uint32_t me = platform::lane();
    if (head + count - cached_tail > depth) {
      uint64_t waited = 0;
      uint64_t seen = 0;
      if (me == 0) {
        waited = static_cast<uint64_t>(
            wait_at_least(tail, head + count - depth, bounds.aborts, bounds.timeout_ns));
        seen = platform::load_relaxed(tail);
      }
      if (waited = platform::broadcast(waited, 0); static_cast<Waited>(waited) != Waited::kDone) {
        return {static_cast<Waited>(waited), head};
      }
      cached_tail = platform::broadcast(seen, 0);
    }
    const uint64_t ticket = head + platform::count_bits(lanes & ((uint64_t{1} << me) - 1));
    platform::warp_barrier();
    platform::fence_release();  // partner: fence_acquire() in Consumer::peek()
    if (wanted) detail::store_slot(slots, depth, ticket, command);
    head += count;
    return {Waited::kDone, ticket};
  }

  // Before the kernel ends, or before others push to the ring.
  EPF_DEVICE void give_back(const DeviceRing& ring) const {
    if (platform::lane() != 0) return;
    platform::store_device(ring.head, head);
    platform::store_device(ring.seen_tail, cached_tail);
  }
};

}  // namespace epfabric
