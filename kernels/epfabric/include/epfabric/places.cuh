// Rows by expert, one for each of a row's experts ("places"), and back: for kernels, by any grid of
// whole warps. Nothing here waits for another block or rank.
#pragma once

#include "platform_block.cuh"
#include "platform_gpu.cuh"
#include "platform_number.cuh"

namespace epfabric {

inline constexpr uint32_t kPlaceWarps = 32;    // of a block, at most
inline constexpr uint32_t kPlaceChoices = 16;  // of a row, at most

// Which place each choice of a row has: by expert, in the order of rows.
struct PlacesCall {
  const int64_t* topk;    // [rows, k]: experts of this rank; others (-1, or anything): none
  const int32_t* counts;  // [experts]: rows of each
  int64_t* places;        // [rows, k]: -1 at first
  int64_t* row_of;        // [total]: -1 at first
  uint64_t total;         // places at or behind it are none
  uint32_t rows, k, experts, alignment;
};

// Rows to their places. Of each array two, or nothing: rows of `vectors` times 16 bytes, of `words`
// words, of one weight for each choice.
struct SpreadCall {
  const unsigned char* values;  // [rows]
  unsigned char* out_values;    // [total]
  const uint32_t* scales;       // [rows]
  uint32_t* out_scales;         // [total]
  const float* weights;         // [rows, k]
  float* out_weights;           // [total]; 0 in the padding
  const int64_t* places;        // [rows, k]
  const int64_t* row_of;        // [total]
  uint64_t total;
  uint32_t rows, k, vectors, words, zero;  // zero: also values and scales are, in the padding
};

// And back: what lies at a row's places, bfloat16, is summed in float and rounded once.
struct SumCall {
  const unsigned char* values;  // [total]
  unsigned char* sums;          // [rows]
  const float* weights;         // [total], or nothing
  float* back;                  // [rows, k]; 0 where there is no place
  const int64_t* places;        // [rows, k]
  uint64_t total;
  uint32_t rows, k, vectors, reserved;
};

namespace detail {

struct alignas(16) PlaceVector {
  uint32_t words[4];
};

struct PlaceCounts {
  uint32_t start;
  uint32_t warps[kPlaceWarps];
};

EPF_DEVICE inline uint32_t warp_of_grid() {
  const uint32_t warps = platform::threads() / platform::kWarpSize;
  return platform::block() * warps + platform::thread() / platform::kWarpSize;
}
EPF_DEVICE inline uint32_t warps_of_grid() {
  return platform::blocks() * (platform::threads() / platform::kWarpSize);
}

// By a block, whose threads take a row each.
EPF_DEVICE inline void place_expert(const PlacesCall& call, uint32_t expert, PlaceCounts& counts) {
  const uint32_t me = platform::thread(), warp = me / platform::kWarpSize;
  const uint32_t warps = platform::threads() / platform::kWarpSize;
  if (me == 0) counts.start = 0;
  platform::block_barrier();
  for (uint32_t i = me; i < expert; i += platform::threads()) {
    const uint32_t padded = static_cast<uint32_t>(call.counts[i]) + call.alignment - 1;
    platform::add_block(&counts.start, padded / call.alignment * call.alignment);
  }
  platform::block_barrier();
  uint64_t next = counts.start;
  for (uint32_t base = 0; base < call.rows; base += platform::threads()) {
    const uint32_t row = base + me;
    uint32_t choice = call.k;
    for (uint32_t c = call.k; row < call.rows && c > 0; --c) {
      if (call.topk[uint64_t{row} * call.k + c - 1] == expert) choice = c - 1;
    }
    const uint64_t named = platform::ballot(choice < call.k);
    if (platform::lane() == 0) counts.warps[warp] = platform::count_bits(named);
    platform::block_barrier();
    uint32_t ahead = platform::count_bits(named & ((uint64_t{1} << platform::lane()) - 1)), all = 0;
    for (uint32_t other = 0; other < warps; ++other) {
      ahead += other < warp ? counts.warps[other] : 0;
      all += counts.warps[other];
    }
    const uint64_t place = next + ahead;
    if (choice < call.k && place < call.total) {
      call.places[uint64_t{row} * call.k + choice] = static_cast<int64_t>(place);
      call.row_of[place] = row;
    }
    next += all;
    platform::block_barrier();
  }
}

// By a warp: the place of the caller's choice, and which choices have one.
struct RowPlaces {
  uint64_t place;
  uint64_t there;
};
EPF_DEVICE inline RowPlaces places_of_row(const int64_t* places, uint32_t row, uint32_t k,
                                          uint64_t total) {
  const uint32_t me = platform::lane();
  const int64_t found = me < k ? places[uint64_t{row} * k + me] : -1;
  const bool there = found >= 0 && static_cast<uint64_t>(found) < total;
  return {static_cast<uint64_t>(found), platform::ballot(there)};
}

// By a warp.
EPF_DEVICE inline void spread_row(const SpreadCall& call, uint32_t row) {
  constexpr uint32_t kAtOnce = 4;
  const RowPlaces to = places_of_row(call.places, row, call.k, call.total);
  const uint32_t me = platform::lane();
  const auto* from =
      reinterpret_cast<const PlaceVector*>(call.values) + uint64_t{row} * call.vectors;
  auto* out = reinterpret_cast<PlaceVector*>(call.out_values);
  for (uint32_t base = me; base < call.vectors + me; base += kAtOnce * platform::kWarpSize) {
    PlaceVector vectors[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t v = base + i * platform::kWarpSize;
      if (v < call.vectors) vectors[i] = from[v];
    }
    for (uint64_t left = to.there; left != 0; left &= left - 1) {
      const uint64_t place = platform::broadcast(to.place, platform::lowest_bit(left));
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t v = base + i * platform::kWarpSize;
        if (v < call.vectors) out[place * call.vectors + v] = vectors[i];
      }
    }
  }
  for (uint32_t base = 0; base < call.words; base += platform::kWarpSize) {
    const bool mine = base + me < call.words;
    const uint32_t word = mine ? call.scales[uint64_t{row} * call.words + base + me] : 0;
    for (uint64_t left = to.there; left != 0; left &= left - 1) {
      const uint64_t place = platform::broadcast(to.place, platform::lowest_bit(left));
      if (mine) call.out_scales[place * call.words + base + me] = word;
    }
  }
  if (call.weights != nullptr && (to.there >> me & 1) != 0)
    call.out_weights[to.place] = call.weights[uint64_t{row} * call.k + me];
}

// By a warp: of as many places as it has lanes, those that no row has.
EPF_DEVICE inline void clear_places(const SpreadCall& call, uint64_t first) {
  const uint32_t me = platform::lane();
  const bool empty = first + me < call.total && call.row_of[first + me] < 0;
  if (empty && call.weights != nullptr) call.out_weights[first + me] = 0.0f;
  const uint64_t all = platform::ballot(empty);
  auto* out = reinterpret_cast<PlaceVector*>(call.out_values);
  for (uint64_t left = call.zero != 0 ? all : 0; left != 0; left &= left - 1) {
    const uint64_t place = first + platform::lowest_bit(left);
    for (uint32_t v = me; v < call.vectors; v += platform::kWarpSize)
      out[place * call.vectors + v] = PlaceVector{};
    for (uint32_t w = me; w < call.words; w += platform::kWarpSize)
      call.out_scales[place * call.words + w] = 0;
  }
}

EPF_DEVICE inline void add_pairs(float (&sums)[8], const PlaceVector& vector) {
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    sums[2 * i] += lower_bf16(vector.words[i]);
    sums[2 * i + 1] += upper_bf16(vector.words[i]);
  }
}

// By a warp.
EPF_DEVICE inline void sum_row(const SumCall& call, uint32_t row) {
  constexpr uint32_t kAtOnce = 4;
  const RowPlaces from = places_of_row(call.places, row, call.k, call.total);
  const uint32_t me = platform::lane();
  const auto* values = reinterpret_cast<const PlaceVector*>(call.values);
  auto* out = reinterpret_cast<PlaceVector*>(call.sums) + uint64_t{row} * call.vectors;
  for (uint32_t v = me; v < call.vectors + me; v += platform::kWarpSize) {
    float sums[8] = {};
    for (uint64_t left = from.there; left != 0;) {
      PlaceVector vectors[kAtOnce] = {};
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (left == 0) continue;
        const uint64_t place = platform::broadcast(from.place, platform::lowest_bit(left));
        left &= left - 1;
        if (v < call.vectors) vectors[i] = values[place * call.vectors + v];
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) add_pairs(sums, vectors[i]);
    }
    PlaceVector rounded;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      rounded.words[i] = platform::bf16_pair(sums[2 * i], sums[2 * i + 1]);
    if (v < call.vectors) out[v] = rounded;
  }
  if (call.weights != nullptr && me < call.k) {
    const bool there = (from.there >> me & 1) != 0;
    call.back[uint64_t{row} * call.k + me] = there ? call.weights[from.place] : 0.0f;
  }
}

}  // namespace detail

EPF_DEVICE inline void place_all(const PlacesCall& call) {
  EPF_SHARED detail::PlaceCounts counts;
  for (uint32_t e = platform::block(); e < call.experts; e += platform::blocks())
    detail::place_expert(call, e, counts);
}

EPF_DEVICE inline void spread_all(const SpreadCall& call) {
  for (uint32_t row = detail::warp_of_grid(); row < call.rows; row += detail::warps_of_grid())
    detail::spread_row(call, row);
  const uint64_t step = uint64_t{detail::warps_of_grid()} * platform::kWarpSize;
  for (uint64_t first = uint64_t{detail::warp_of_grid()} * platform::kWarpSize; first < call.total;
       first += step)
    detail::clear_places(call, first);
}

EPF_DEVICE inline void sum_all(const SumCall& call) {
  for (uint32_t row = detail::warp_of_grid(); row < call.rows; row += detail::warps_of_grid())
    detail::sum_row(call, row);
}

}  // namespace epfabric
