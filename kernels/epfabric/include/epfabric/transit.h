// The memory of a rank through which it exchanges with ranks that only agents reach: places and
// sizes. A region of it, alike at all ranks: the half that they write, then the half that goes out
// to them. Used by kernels; a Python mirror in epfabric.cuda.window is checked against it.
#pragma once

#include "window.h"

namespace epfabric {

inline constexpr uint32_t kPacked = 8;  // messages, or rows, that one command carries at most

// Before the messages from one rank to another; then come its tokens for each expert there, uint32.
struct Note {
  uint64_t messages;  // a word as those of a window
  uint64_t reserved;
};
static_assert(sizeof(Note) == 16);

// Offsets in bytes in either half. What goes to a rank lies, in the half that goes out, under that
// rank; it comes to the same place under the writing rank: of tables [parity][rank].
struct Transit {
  uint64_t tokens;   // a note, then messages
  uint64_t weights;  // [message][topk] float
  uint64_t rows;     // [message] bfloat16 rows
  uint64_t note_bytes, tokens_each, weights_each, rows_each;
  uint64_t bytes;  // of a half

  EPF_HOST_DEVICE static uint64_t place(const Shape& shape, uint64_t call, uint32_t other) {
    return (call % kParities) * shape.world + other;
  }
  EPF_HOST_DEVICE uint64_t tokens_at(const Shape& shape, uint64_t call, uint32_t other) const {
    return tokens + place(shape, call, other) * tokens_each;
  }
  EPF_HOST_DEVICE uint64_t weights_at(const Shape& shape, uint64_t call, uint32_t other) const {
    return weights + place(shape, call, other) * weights_each;
  }
  EPF_HOST_DEVICE uint64_t rows_at(const Shape& shape, uint64_t call, uint32_t other) const {
    return rows + place(shape, call, other) * rows_each;
  }
};

EPF_HOST_DEVICE inline uint64_t weights_bytes(const Shape& shape, uint64_t messages) {
  return (messages * shape.topk * 4 + 15) / 16 * 16;
}

EPF_HOST_DEVICE inline Transit transit_of(const Shape& shape) {
  const uint64_t each = uint64_t{kParities} * shape.world;
  Transit at{};
  at.note_bytes = sizeof(Note) + (uint64_t{shape.local_experts()} * 4 + 15) / 16 * 16;
  at.tokens_each = at.note_bytes + shape.tokens * shape.message_bytes(false);
  at.weights_each = weights_bytes(shape, shape.tokens);
  at.rows_each = shape.tokens * shape.row_bytes();
  at.weights = at.tokens + each * at.tokens_each;
  at.rows = at.weights + each * at.weights_each;
  at.bytes = at.rows + each * at.rows_each;
  return at;
}

}  // namespace epfabric
