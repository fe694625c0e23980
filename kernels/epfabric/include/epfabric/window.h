// The memory of a rank that its peers' kernels write into: places and sizes. Used by kernels; a
// Python mirror in epfabric.cuda.window is checked against it.
#pragma once

#include "platform.h"

namespace epfabric {

inline constexpr uint32_t kParities = 2;  // calls of one kind that may be under way at once
inline constexpr uint32_t kMaxTopk = 16;
inline constexpr uint32_t kWindowRanks = 1024;
inline constexpr uint32_t kWindowExperts = 1024;
// As many of one rank in a call, at most, go without a signal behind them all.
inline constexpr uint32_t kQuickWeights = 2048;
inline constexpr uint32_t kQuickRows = 2048;

// What all ranks of a buffer agree on. `tokens`: at most, of one rank in one call.
struct Shape {
  uint32_t world, experts, tokens, hidden, topk;

  EPF_HOST_DEVICE uint32_t local_experts() const { return experts / world; }
  // To how many ranks a token goes at most.
  EPF_HOST_DEVICE uint32_t copies() const { return topk < world ? topk : world; }
  EPF_HOST_DEVICE uint64_t row_bytes() const { return uint64_t{hidden} * 2; }
  // The header's words, then an entry for each expert, then its weight.
  EPF_HOST_DEVICE uint32_t weights_offset() const { return 16 + (topk + 3) / 4 * 16; }
  EPF_HOST_DEVICE uint32_t header_bytes() const { return 16 + (topk + 3) / 4 * 32; }
  // One token for one destination rank: as bfloat16, or as 8-bit floats and then their scales.
  EPF_HOST_DEVICE uint64_t message_bytes(bool fp8) const {
    const uint64_t small = (uint64_t{hidden} + hidden / 128 * 4 + 15) / 16 * 16;
    return header_bytes() + (fp8 ? small : row_bytes());
  }
};

// Begins every message; then come the entries, their weights (if the dispatch had them) and the
// token. `copy`: the how-manieth destination rank of the token this is.
struct MessageHeader {
  uint32_t token, copy, entries, reserved;
};
static_assert(sizeof(MessageHeader) == 16);

// An expert of the destination rank that the token goes to, and the how-manieth of this source's
// tokens it is there.
inline constexpr uint32_t kEntryIndexBits = 20;
inline constexpr uint32_t kMaxTokens = 1u << kEntryIndexBits;
EPF_HOST_DEVICE inline uint32_t pack_entry(uint32_t expert, uint32_t index) {
  return expert << kEntryIndexBits | index;
}
EPF_HOST_DEVICE inline uint32_t entry_expert(uint32_t entry) { return entry >> kEntryIndexBits; }
EPF_HOST_DEVICE inline uint32_t entry_index(uint32_t entry) { return entry & (kMaxTokens - 1); }

// Offsets in bytes. A word says which call it belongs to in its upper half (the call's number, from
// 1), so that it only grows; the lower half is a count.
struct Window {
  uint64_t dispatch_words;    // [parity][source], count: messages
  uint64_t weight_words;      // [parity][source]
  uint64_t combine_words;     // [parity][source]
  uint64_t dispatch_credits;  // [destination], how many calls it is done with
  uint64_t combine_credits;   // [source]
  // Whatever the shape, nothing else ever lies in these two that could pass for their words.
  uint64_t quick_weights;  // [parity][source] kQuickWeights × (call + 1) << 32 | float, of which
                           // [message][topk] are used
  uint64_t quick_rows;     // [parity] kQuickRows × call + 1: [token][copy]
  uint64_t counts;         // [parity][source][local expert] uint32: tokens
  uint64_t weights;        // [parity][source][message][topk] float
  uint64_t messages;       // [parity][source][message]
  uint64_t rows;           // [parity][token][copy] bfloat16 rows
  uint64_t bytes;
};

EPF_HOST_DEVICE inline Window window_of(const Shape& shape) {
  const auto after = [](uint64_t at, uint64_t bytes) { return (at + bytes + 127) / 128 * 128; };
  const uint64_t words = uint64_t{kParities} * shape.world * 8;
  const uint64_t slots = uint64_t{kParities} * shape.world * shape.tokens;
  Window at{};
  at.weight_words = after(at.dispatch_words, words);
  at.combine_words = after(at.weight_words, words);
  at.dispatch_credits = after(at.combine_words, words);
  at.combine_credits = after(at.dispatch_credits, uint64_t{shape.world} * 8);
  at.quick_weights = after(at.combine_credits, uint64_t{shape.world} * 8);
  at.quick_rows = after(at.quick_weights, words * kQuickWeights);
  at.counts = after(at.quick_rows, uint64_t{kParities} * kQuickRows * 8);
  at.weights = after(at.counts, uint64_t{kParities} * shape.experts * 4);
  at.messages = after(at.weights, slots * shape.topk * 4);
  at.rows = after(at.messages, slots * shape.message_bytes(false));
  at.bytes =
      after(at.rows, uint64_t{kParities} * shape.tokens * shape.copies() * shape.row_bytes());
  return at;
}

}  // namespace epfabric
