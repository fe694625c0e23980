// A rank's high-throughput buffer as its kernels see it: windows of all ranks, the call's number,
// waits, and the exchange that begins every call. Filled by epfabric.cuda.channels.
#pragma once

#include "channels.h"
#include "fifo.h"
#include "platform_block.cuh"

namespace epfabric {

inline constexpr uint32_t kChannelBatch = 64;  // tokens that a block has in hand
inline constexpr uint32_t kChannelWarps = 32;  // of a block, at most

struct alignas(16) ChannelVector {
  uint32_t words[4];
};

// What a wait was for, when it failed.
enum class ChannelAwaited : uint32_t { kNothing, kRank, kSlots, kTokens, kRows };

struct ChannelState {
  uint64_t calls;    // that have begun
  uint64_t arrived;  // blocks that have come to the end of the running one
  uint64_t failed;   // ChannelAwaited << 32 | rank; not 0: the kernels do nothing any more
};

struct ChannelBuffer {
  unsigned char* const* windows;  // by rank, as this GPU reaches them
  ChannelState* state;
  uint64_t* alarm;  // in host memory: as `failed`
  AbortWords aborts;
  uint64_t timeout_ns;
  ChannelShape shape;
  uint32_t rank, reserved;

  template <typename Item>
  EPF_DEVICE Item* at(uint32_t owner, uint64_t offset) const {
    return reinterpret_cast<Item*>(windows[owner] + offset);
  }
  // Of a table [channel][rank] in the window of `owner`.
  EPF_DEVICE uint64_t* word(uint32_t owner, uint64_t table, uint32_t channel,
                            uint32_t other) const {
    return at<uint64_t>(owner, table) + channel * kChannelRanks + other;
  }
  EPF_DEVICE unsigned char* slot(uint32_t owner, uint32_t channel, uint32_t source,
                                 uint32_t index) const {
    const uint64_t ring = (uint64_t{channel} * shape.world + source) * shape.slots;
    return at<unsigned char>(owner, ChannelWindow{}.rings) +
           (ring + index % shape.slots) * shape.slot_bytes();
  }
};

namespace detail {

EPF_DEVICE inline bool failed(const ChannelBuffer& buffer) {
  return platform::load_device(&buffer.state->failed) != 0;
}

EPF_DEVICE inline void fail(const ChannelBuffer& buffer, ChannelAwaited what, uint32_t rank) {
  const uint64_t why = uint64_t{static_cast<uint32_t>(what)} << 32 | rank;
  platform::store_device(&buffer.state->failed, why);
  platform::store_relaxed(buffer.alarm, why);
}

// The end of patience; for loops that look at several things in turn.
struct Patience {
  uint64_t begin = 0;
  uint32_t looks = 0;

  // After a look that was in vain. False: the bound, an abort, or the buffer has failed.
  EPF_DEVICE bool pause(const ChannelBuffer& buffer, ChannelAwaited what, uint32_t rank) {
    if (begin == 0) begin = platform::clock_ns();
    if ((++looks & 63) == 0) {
      if (platform::clock_ns() - begin > buffer.timeout_ns || buffer.aborts.set()) {
        fail(buffer, what, rank);
      }
      if (failed(buffer)) return false;
    }
    platform::pause(looks);
    return true;
  }
};

// The count in a word, if it belongs to `call`; acquires.
EPF_DEVICE inline bool said(const uint64_t* word, uint64_t call, uint32_t& count) {
  const uint64_t value = platform::load_acquire(word);
  count = static_cast<uint32_t>(value);
  return static_cast<uint32_t>(value >> 32) == static_cast<uint32_t>(call + 1);
}

EPF_DEVICE inline uint64_t say(uint64_t call, uint32_t count) {
  return uint64_t{static_cast<uint32_t>(call + 1)} << 32 | count;
}

// By one thread; false when it failed.
EPF_DEVICE inline bool await_said(const ChannelBuffer& buffer, const uint64_t* word, uint64_t call,
                                  ChannelAwaited what, uint32_t rank, uint32_t& count) {
  Patience patience;
  while (!said(word, call, count)) {
    if (!patience.pause(buffer, what, rank)) return false;
  }
  return true;
}

// As await_said(), but a later call will do: a rank that needs nothing of this one may be there
// already, and its word is overwritten.
EPF_DEVICE inline bool await_rank(const ChannelBuffer& buffer, const uint64_t* word, uint64_t call,
                                  uint32_t rank, uint32_t& count) {
  Patience patience;
  for (;;) {
    const uint64_t value = platform::load_acquire(word);
    count = static_cast<uint32_t>(value);
    const uint32_t ahead = static_cast<uint32_t>(value >> 32) - static_cast<uint32_t>(call + 1);
    if (ahead < 0x80000000u) return true;
    if (!patience.pause(buffer, ChannelAwaited::kRank, rank)) return false;
  }
}

EPF_DEVICE inline uint32_t warp() { return platform::thread() / platform::kWarpSize; }
EPF_DEVICE inline uint32_t warps() { return platform::threads() / platform::kWarpSize; }

// What a warp has of a block's rows: where there are fewer rows than warps, several share one.
struct Share {
  uint32_t row, part, parts;

  EPF_DEVICE uint32_t first(uint32_t vectors) const { return vectors * part / parts; }
  EPF_DEVICE uint32_t end(uint32_t vectors) const { return vectors * (part + 1) / parts; }
};

// By a block: work(share) for all of `rows`.
template <typename Work>
EPF_DEVICE void share_rows(uint32_t rows, Work work) {
  const uint32_t parts = rows < warps() && rows != 0 ? warps() / rows : 1;
  for (uint32_t unit = warp(); unit < rows * parts; unit += warps()) {
    work(Share{unit / parts, unit % parts, parts});
  }
}

// By a warp: its share of a row of `count` vectors to each of `n` targets that is not nothing. A
// thread has seven loads under way, and finds its places without a division.
EPF_DEVICE inline void copy_row(const unsigned char* from, unsigned char* const* targets,
                                uint32_t n, uint32_t count, const Share& share) {
  constexpr uint32_t kAtOnce = 7;
  const auto* source = reinterpret_cast<const ChannelVector*>(from);
  const uint32_t end = share.end(count);
  for (uint32_t base = share.first(count) + platform::lane(); base < end;
       base += kAtOnce * platform::kWarpSize) {
    ChannelVector vectors[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t v = base + i * platform::kWarpSize;
      if (v < end) vectors[i] = source[v];
    }
    for (uint32_t which = 0; which < n; ++which) {
      auto* target = reinterpret_cast<ChannelVector*>(targets[which]);
      if (target == nullptr) continue;
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t v = base + i * platform::kWarpSize;
        if (v < end) target[v] = vectors[i];
      }
    }
  }
}

}  // namespace detail

// How a call begins. Without `rank_tokens` the ranks only meet: each is done with the call before.
struct MeetCall {
  const int32_t* rank_tokens;    // [world]: that this rank sends
  const int32_t* expert_tokens;  // [experts]
  int32_t* firsts;               // [world + 1]: the first row of each source, then all
  uint64_t* told;                // [2 + local experts]: 0, rows, rows of each expert; of the host
                                 // or of this GPU
  uint32_t experts, alignment;   // counts of experts are rounded up to multiples
};

// By one block, before the call's other kernel on the same stream. When it has ended, all windows
// are free and, with counts, it is known what will come.
EPF_DEVICE inline void meet(const ChannelBuffer& buffer, const MeetCall& call) {
  EPF_SHARED uint32_t tokens[kChannelRanks + 1];
  const ChannelWindow at{};
  const uint32_t world = buffer.shape.world;
  const uint32_t local = call.experts / world;
  const uint32_t me = platform::thread();
  const uint64_t number = platform::load_device(&buffer.state->calls);
  if (call.rank_tokens != nullptr) {
    for (uint32_t e = me; e < call.experts; e += platform::threads()) {
      const uint64_t place = uint64_t{buffer.rank} * kChannelExperts + e % local;
      buffer.at<uint32_t>(e / local, at.counts)[place] =
          static_cast<uint32_t>(call.expert_tokens[e]);
    }
  }
  platform::block_barrier();
  if (me < world && !detail::failed(buffer)) {
    const uint32_t sends = call.rank_tokens != nullptr ? call.rank_tokens[me] : 0;
    platform::store_release(buffer.at<uint64_t>(me, at.ready) + buffer.rank,
                            detail::say(number, sends));
    uint32_t count = 0;
    detail::await_rank(buffer, buffer.at<uint64_t>(buffer.rank, at.ready) + me, number, me, count);
    tokens[me] = count;
  }
  platform::block_barrier();
  if (me == 0) platform::store_device(&buffer.state->calls, number + 1);
  if (call.rank_tokens == nullptr || detail::failed(buffer)) return;
  const auto* counts = buffer.at<uint32_t>(buffer.rank, at.counts);
  for (uint32_t e = me; e < local && call.told != nullptr; e += platform::threads()) {
    uint32_t rows = 0;
    for (uint32_t from = 0; from < world; ++from) rows += counts[from * kChannelExperts + e];
    call.told[2 + e] = (rows + call.alignment - 1) / call.alignment * call.alignment;
  }
  platform::block_barrier();
  if (me != 0) return;
  uint32_t rows = 0;
  for (uint32_t from = 0; from < world; ++from) {
    call.firsts[from] = static_cast<int32_t>(rows);
    rows += tokens[from];
  }
  call.firsts[world] = static_cast<int32_t>(rows);
  if (call.told == nullptr) return;
  call.told[1] = rows;
  platform::store_release(call.told, 1);  // the host looks for it
}

}  // namespace epfabric
