// A rank's expert-parallel buffer as its kernels see it: the windows of all ranks, calls, how it
// fails. Everything that changes lies in GPU memory, so that a captured graph can be
// replayed. Filled by epfabric.cuda.low_latency (its mirror is checked against this one).
#pragma once

#include "platform_block.cuh"
#include "rank.cuh"
#include "transit.h"

namespace epfabric {

// What a wait is for. Those up to kRowRoom have a signal word each at ranks that only agents reach:
// for how many calls it has come.
enum class Awaited : uint32_t { kNothing, kTokenRoom, kTokens, kWeights, kRows, kRowRoom, kRing };
inline constexpr uint32_t kAwaitedKinds = 7;
inline constexpr uint32_t kSignalWords = 5;

// Counts of blocks that have come to the end of a part of the running call.
struct BufferState {
  uint64_t arrived_sent, arrived_weights, arrived_sums;
  uint64_t failed;  // Awaited << 32 | rank; not 0: the buffer's kernels do nothing any more
  uint64_t told_tokens, told_rows;  // calls that the proxied ranks were told this one is done with
};

// Calls that a block has been through; alike for all blocks between two kernels.
struct BlockCalls {
  uint64_t dispatch_sent, dispatch_received, combine_sent, combine_received;
  uint64_t weighted;  // combines for which weights were exchanged
};

struct DeviceBuffer {
  unsigned char* const* windows;  // by rank, as this GPU reaches them; of proxied ranks: nothing
  BufferState* state;
  BlockCalls* calls;   // by block
  uint64_t* messages;  // by destination rank: of the running dispatch
  uint64_t* counts;    // by expert: tokens of the running dispatch
  uint64_t* masked;    // by rank: not 0 when nothing goes there or comes from there
  uint64_t* verdicts;  // [Awaited][rank]: (call + 1) × 2, and 1 when it came; where ranks are
                       // masked. Of kRing: 1 where a ring is lost
  uint64_t* alarm;     // in host memory: as BufferState::failed, so that the next call can tell
  AbortWords aborts;
  uint64_t timeout_ns;
  Shape shape;
  uint32_t rank;
  uint32_t mask;  // a rank that does not come in time is masked; otherwise the buffer has failed
  uint32_t first_signal;    // of kSignalWords
  const DeviceRank* agent;  // nothing: there are no proxied ranks
  unsigned char* region;    // for them, as this GPU reaches it: what comes in, then what goes out
  uint64_t region_offset;   // in the offset space of every rank
  uint32_t first_ring;      // of those that only this buffer's kernels push to
  uint32_t reserved;
};

// What a block reads once, when it begins; in shared memory.
struct Here {
  unsigned char* windows[kWindowRanks];
  uint32_t masked[kWindowRanks];
  BlockCalls calls;
  uint64_t sent, received;  // calls of this kind
  uint64_t told_tokens, told_rows;
  uint64_t failed;

  template <typename Item>
  EPF_DEVICE Item* at(uint32_t owner, uint64_t offset) const {
    return reinterpret_cast<Item*>(windows[owner] + offset);
  }
  // Whether its memory is reached through the agents only.
  EPF_DEVICE bool proxied(uint32_t rank) const { return windows[rank] == nullptr; }
};

// Which calls a kernel is about.
enum class Kind { kDispatch, kCombine };

// Of a table [parity][rank] of words: where `other` says something of the call.
EPF_DEVICE inline uint64_t place_of(const DeviceBuffer& buffer, uint64_t table, uint64_t call,
                                    uint32_t other) {
  return table + ((call % kParities) * buffer.shape.world + other) * 8;
}

// Call n (from 0) is n + 1 in words, of which 32 bits are kept.
EPF_DEVICE inline uint64_t word_of(uint64_t call, uint32_t count) {
  return uint64_t{static_cast<uint32_t>(call + 1)} << 32 | count;
}

namespace detail {

EPF_DEVICE inline void fail(const DeviceBuffer& buffer, uint32_t from, Awaited what) {
  const uint64_t why = uint64_t{static_cast<uint32_t>(what)} << 32 | from;
  platform::store_device(&buffer.state->failed, why);
  platform::store_relaxed(buffer.alarm, why);  // read by the host whenever it likes
}

}  // namespace detail

}  // namespace epfabric
