// A rank's high-throughput buffer as its kernels see it: windows of ranks whose memory is reached,
// the way to others, the call's number, waits. Filled by epfabric.cuda.channels.
#pragma once

#include "channels.h"
#include "platform_block.cuh"
#include "rank.cuh"

// Kernels of ranks that all reach each other's memory leave out what others need: it costs
// registers.
#ifndef EPF_CHANNELS_PROXIED
#define EPF_CHANNELS_PROXIED 1
#endif

namespace epfabric {

inline constexpr bool kChannelsProxied = EPF_CHANNELS_PROXIED != 0;
inline constexpr uint32_t kChannelBatch = 64;  // tokens that a block has in hand
inline constexpr uint32_t kChannelWarps = 32;  // of a block, at most

struct alignas(16) ChannelVector {
  uint32_t words[4];
};

// What a wait was for, when it failed.
enum class ChannelAwaited : uint32_t { kNothing, kRank, kSlots, kTokens, kRows, kRing };

// What a rank that only agents reach says by a signal word each: how many calls it has begun, and
// by channel how much for this rank it has written and of this rank's slots it has freed, in all
// calls.
enum class ChannelSaid : uint32_t { kMet, kWritten, kFreed };
inline constexpr uint32_t kChannelSignals = 3;

struct ChannelState {
  uint64_t calls;      // that have begun
  uint64_t arrived;    // blocks that have come to the end of the running one
  uint64_t failed;     // ChannelAwaited << 32 | rank; not 0: the kernels do nothing any more
  uint64_t lost_ring;  // not 0: a ring was given up
};

struct ChannelBuffer {
  unsigned char* const* windows;  // by rank, as this GPU reaches them; of proxied ranks: nothing
  ChannelState* state;
  uint64_t* alarm;  // in host memory: as `failed`
  AbortWords aborts;
  uint64_t timeout_ns;
  ChannelShape shape;
  uint32_t rank;
  uint32_t node_ranks;      // that follow each other on each node and reach each other's memory; 1:
                            // each rank is taken for a node of its own; 0: there is one node
  const DeviceRank* agent;  // nothing: there are no proxied ranks
  unsigned char* region;    // of ChannelTransit, as this GPU reaches it
  uint64_t region_offset;   // in the offset space of every rank
  uint64_t* tallies;        // [ChannelSaid][channel][rank]: as it was when the running call began
  uint32_t first_ring;      // of those that only kernels push to: one for each channel
  uint32_t first_signal;    // of kChannelSignals

  template <typename Item>
  EPF_DEVICE Item* at(uint32_t owner, uint64_t offset) const {
    return reinterpret_cast<Item*>(windows[owner] + offset);
  }
  // Of a table [channel][rank] in the window of `owner`.
  EPF_DEVICE uint64_t* word(uint32_t owner, uint64_t table, uint32_t channel,
                            uint32_t other) const {
    return at<uint64_t>(owner, table) + channel * kChannelRanks + other;
  }
  // Whether its memory is reached through the agents only.
  EPF_DEVICE bool proxied(uint32_t other) const {
    return kChannelsProxied && agent != nullptr && windows[other] == nullptr;
  }

  EPF_DEVICE uint32_t node_of(uint32_t other) const {
    return kChannelsProxied && node_ranks != 0 ? other / node_ranks : 0;
  }
  EPF_DEVICE uint32_t nodes() const {
    return kChannelsProxied && node_ranks != 0 ? shape.world / node_ranks : 1;
  }
  EPF_DEVICE bool near(uint32_t other) const { return node_of(other) == node_of(rank); }
  // The rank of a node that has this one's place there: streams between nodes are between these.
  EPF_DEVICE uint32_t rail(uint32_t node) const {
    return rank + (node - node_of(rank)) * node_ranks;
  }
  EPF_DEVICE bool far(uint32_t other) const {
    return !near(other) && rail(node_of(other)) == other;
  }
  // The rank of this node with the place of another on its own, and a stream's number in its
  // window: what goes to or comes from ranks of other nodes passes it.
  EPF_DEVICE uint32_t by(uint32_t other) const {
    return near(other) ? other : other + (node_of(rank) - node_of(other)) * node_ranks;
  }
  EPF_DEVICE uint32_t stream(uint32_t other) const {
    return near(other) ? rank : rail(node_of(other));
  }
};

namespace detail {

EPF_DEVICE inline bool failed(const ChannelBuffer& buffer) {
  return platform::load_device(&buffer.state->failed) != 0;
}

// By a block, first of all: whether there is a call to be made, and its number. One answer for all
// of its threads, while other blocks may be failing the buffer.
EPF_DEVICE inline bool begins(const ChannelBuffer& buffer, uint64_t& number) {
  EPF_SHARED uint64_t calls, failure;
  if (platform::thread() == 0) {
    failure = platform::load_device(&buffer.state->failed);
    calls = platform::load_device(&buffer.state->calls);
  }
  platform::block_barrier();
  number = calls - 1;
  return failure == 0;
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
      // Whoever is lost, its tokens may be waited for by way of others.
      const bool lost = kChannelsProxied && buffer.agent != nullptr && buffer.agent->any_masked();
      if (lost || platform::clock_ns() - begin > buffer.timeout_ns || buffer.aborts.set()) {
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

// As await_said(), of a signal word.
EPF_DEVICE inline bool await_signal(const ChannelBuffer& buffer, const uint64_t* word,
                                    uint64_t least, ChannelAwaited what, uint32_t rank) {
  Patience patience;
  while (platform::load_acquire(word) < least) {
    if (!patience.pause(buffer, what, rank)) return false;
  }
  return true;
}

// Tokens, rows or slots from `first` to before `end`.
struct Range {
  uint32_t first, end;
};

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
// thread has seven loads under way, and finds its places without a division. kOnce: what is read is
// not needed again, and what target `last` gets not soon; caches rather keep what ranks have yet to
// read.
template <bool kOnce = false>
EPF_DEVICE void copy_row(const unsigned char* from, unsigned char* const* targets, uint32_t n,
                         uint32_t count, const Share& share, uint32_t last = 0) {
  constexpr uint32_t kAtOnce = 7;
  const auto* source = reinterpret_cast<const ChannelVector*>(from);
  const uint32_t end = share.end(count);
  for (uint32_t base = share.first(count) + platform::lane(); base < end;
       base += kAtOnce * platform::kWarpSize) {
    ChannelVector vectors[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t v = base + i * platform::kWarpSize;
      if (v < end) vectors[i] = kOnce ? platform::load_once(source + v) : source[v];
    }
    for (uint32_t which = 0; which < n; ++which) {
      auto* target = reinterpret_cast<ChannelVector*>(targets[which]);
      if (target == nullptr) continue;
      if (kOnce && which == last) {
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce; ++i) {
          const uint32_t v = base + i * platform::kWarpSize;
          if (v < end) platform::store_once(target + v, vectors[i]);
        }
        continue;
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t v = base + i * platform::kWarpSize;
        if (v < end) target[v] = vectors[i];
      }
    }
  }
}

}  // namespace detail

}  // namespace epfabric
