// The memory of a rank that its peers write into in high-throughput calls: rings, by channel and
// peer; and the region that agents write into, for peers of other nodes. For kernels;
// epfabric.cuda.channels holds a mirror that is checked against this.
#pragma once

#include "platform.h"

namespace epfabric {

inline constexpr uint32_t kChannels = 64;          // of a call, at most
inline constexpr uint32_t kChannelRanks = 64;      // of a buffer, at most
inline constexpr uint32_t kChannelExperts = 1024;  // of a rank, at most

// What all ranks give alike to one call. A token's slot: its header, then for each of its choices
// an expert and a weight, then its scales, then its bytes.
struct ChannelShape {
  uint32_t world, channels, slots;
  uint32_t topk, scales, row_bytes;  // of a token: choices, floats, bytes (a multiple of 16)

  EPF_HOST_DEVICE uint32_t weights_offset() const { return 16 + (topk + 3) / 4 * 16; }
  EPF_HOST_DEVICE uint32_t scales_offset() const { return 16 + (topk + 3) / 4 * 32; }
  EPF_HOST_DEVICE uint32_t row_offset() const { return scales_offset() + (scales + 3) / 4 * 16; }
  EPF_HOST_DEVICE uint64_t slot_bytes() const { return uint64_t{row_offset()} + row_bytes; }
  // Of slot `index`, counted on and on, in rings [channel][rank][slot].
  EPF_HOST_DEVICE uint64_t slot_place(uint32_t channel, uint32_t rank, uint32_t index) const {
    return ((uint64_t{channel} * world + rank) * slots + index % slots) * slot_bytes();
  }
  EPF_HOST_DEVICE uint64_t rings_bytes() const {
    return uint64_t{channels} * world * slots * slot_bytes();
  }
};

// Offsets in bytes. Words hold the call's number (from 1) in their upper half and a count in the
// lower one, as those of window.h.
struct ChannelWindow {
  static constexpr uint64_t kWords = uint64_t{kChannels} * kChannelRanks * 8;

  uint64_t ready = 0;                   // [source]: tokens that will come from it
  uint64_t counts = kChannelRanks * 8;  // [source][local expert] uint32: of these
  uint64_t firsts = counts + uint64_t{kChannelRanks} * kChannelExperts *
                                 4;   // [channel][source]:
                                      // tokens of the source's channels before
  uint64_t totals = firsts + kWords;  // [channel][source]: tokens of the channel
  uint64_t tails = totals + kWords;   // [channel][source]: slots that are written
  uint64_t heads = tails + kWords;    // [channel][destination]: slots that are free
  uint64_t rings = heads + kWords;    // [channel][source][slot]
};

EPF_HOST_DEVICE inline uint64_t channel_window_bytes(const ChannelShape& shape) {
  return ChannelWindow{}.rings + shape.rings_bytes();
}

// How many tokens go to a rank; then for each expert there, uint32.
struct ChannelNote {
  uint64_t tokens, reserved;
};
inline constexpr uint64_t kChannelNoteBytes = sizeof(ChannelNote) + uint64_t{kChannelExperts} * 4;

// What a channel brings to a node.
struct ChannelRecord {
  uint64_t total;  // tokens
  // By the node's ranks: tokens of the source's channels before, and of this one.
  struct {
    uint32_t first, total;
  } ranks[kChannelRanks];
  uint64_t reserved;
};
static_assert(sizeof(ChannelRecord) % 16 == 0);

// Offsets in the region: of what comes in, by the rank that wrote it, and of what goes out, by the
// rank that it is for, at the same place. Calls of any shape have their rings alone at other
// places: those are written when all ranks have met, and so are done with the call before.
struct ChannelPart {
  uint64_t in, out;
};
struct ChannelTransit {
  ChannelPart notes;    // [rank]
  ChannelPart records;  // [channel][rank]
  ChannelPart rings;    // [channel][rank][slot]
  uint64_t bytes;
};

EPF_HOST_DEVICE inline ChannelTransit channel_transit(const ChannelShape& shape) {
  const uint64_t notes = shape.world * kChannelNoteBytes;
  const uint64_t records = uint64_t{kChannels} * shape.world * sizeof(ChannelRecord);
  const uint64_t rings = 2 * (notes + records);
  return {{0, notes},
          {2 * notes, 2 * notes + records},
          {rings, rings + shape.rings_bytes()},
          rings + 2 * shape.rings_bytes()};
}

}  // namespace epfabric
