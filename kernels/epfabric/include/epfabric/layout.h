// Where everything lies in the two segments that a session shares between its pod and its agent.
// Pod segment: written by the pod only (abort word, slots). Agent segment: written by the agent
// only (counters, mask, atomic results, signal words, abort word, heartbeat). Offsets in bytes.
#pragma once

#include "command.h"

namespace epfabric {

inline constexpr uint64_t kPodMagic = 0x31444f5043465045;    // "EPFCPOD1"
inline constexpr uint64_t kAgentMagic = 0x31544e4743465045;  // "EPFCGNT1"
inline constexpr uint64_t kSegmentAlign = 65536;  // the largest page size of the machines meant
inline constexpr uint64_t kHeaderBytes = 4096;
inline constexpr uint64_t kCacheLine = 64;
inline constexpr uint32_t kMaxRings = 64;
inline constexpr uint32_t kMinDepth = 16;
inline constexpr uint32_t kMaxDepth = 65536;
inline constexpr uint64_t kMaskBytes = kMaxRanks / 8;

// Start of the pod segment. The abort word has a line of its own: the agent polls it.
struct PodHeader {
  uint64_t magic;
  uint32_t abi;
  uint32_t rings;
  uint32_t depth;
  uint32_t signals;
  alignas(kCacheLine) uint64_t abort;  // not 0: the pod gave this epoch up
};

// Start of the agent segment.
struct AgentHeader {
  uint64_t magic;
  uint32_t abi;
  uint32_t rings;
  uint32_t depth;
  uint32_t signals;
  uint32_t world;
  uint32_t rank;
  alignas(kCacheLine) uint64_t abort;      // not 0: the epoch failed; sticky
  alignas(kCacheLine) uint64_t heartbeat;  // grows while the agent lives
  alignas(kCacheLine) uint64_t epoch;
};

// What the agent tells of one ring. The producer polls `tail`; whoever waits polls `completed`.
struct RingCounters {
  alignas(kCacheLine) uint64_t tail;  // slots taken: the slot of ticket t is free when tail > t
  alignas(kCacheLine)
      uint64_t completed;        // slots retired in order: ticket t is done when completed > t
  uint64_t refused;              // commands refused since the session began
  uint64_t last_refused_ticket;  // meaningful where refused > 0; stored before `refused`
  uint64_t last_refused_reason;  // a Refusal
  uint64_t masked;               // commands to masked ranks
};
static_assert(sizeof(PodHeader) == 128 && sizeof(AgentHeader) == 256);
static_assert(sizeof(RingCounters) == 128);

// What became of an ATOMIC. The agent stores `old`, then `done`: whoever reads its ticket + 1
// there, then `old`, then `done` once more unchanged, has the word's value before the operation.
struct AtomicResult {
  uint64_t old;
  // Ticket + 1 of the ATOMIC; another value: it is not complete, or ended without an answer, and
  // may have been applied all the same.
  uint64_t done;

  // False where it is not the result of that ticket. Partner: Ring::store_result() of the agent.
  EPF_HOST_DEVICE bool read(uint64_t ticket, uint64_t& value) const {
    if (platform::load_acquire(&done) != ticket + 1) return false;
    value = platform::load_relaxed(&old);
    platform::fence_acquire();
    return platform::load_relaxed(&done) == ticket + 1;
  }
};
static_assert(sizeof(AtomicResult) == 16);

struct Layout {
  uint64_t slots;        // pod segment: ring r's slots begin at slots + r * depth * 16
  uint64_t pod_bytes;    // size of the pod segment
  uint64_t counters;     // agent segment: ring r's RingCounters at counters + r * 128
  uint64_t mask;         // bit r of 4,096: rank r is masked
  uint64_t results;      // AtomicResult of ticket t of ring r: (r * depth + t % depth) * 16
  uint64_t signals;      // word i that (rank s, ring r) writes: ((s * rings + r) * words + i) * 8
  uint64_t agent_bytes;  // size of the agent segment
};

EPF_HOST_DEVICE constexpr bool layout_valid(uint32_t rings, uint32_t depth, uint32_t signals,
                                            uint32_t world) {
  return rings >= 1 && rings <= kMaxRings && depth >= kMinDepth && depth <= kMaxDepth &&
         (depth & (depth - 1)) == 0 && signals >= 1 && signals <= kMaxSignals && world >= 1 &&
         world <= kMaxRanks;
}

EPF_HOST_DEVICE constexpr uint64_t round_up(uint64_t value, uint64_t align) {
  return (value + align - 1) / align * align;
}

// Only for values that layout_valid() accepts.
EPF_HOST_DEVICE constexpr Layout layout_of(uint32_t rings, uint32_t depth, uint32_t signals,
                                           uint32_t world) {
  Layout at{};
  at.slots = kHeaderBytes;
  at.pod_bytes = round_up(at.slots + uint64_t{rings} * depth * sizeof(Slot), kSegmentAlign);
  at.counters = kHeaderBytes;
  at.mask = at.counters + uint64_t{rings} * sizeof(RingCounters);
  at.results = round_up(at.mask + kMaskBytes, kHeaderBytes);
  at.signals = round_up(at.results + uint64_t{rings} * depth * sizeof(AtomicResult), kHeaderBytes);
  at.agent_bytes = round_up(at.signals + uint64_t{world} * rings * signals * 8, kSegmentAlign);
  return at;
}

}  // namespace epfabric
