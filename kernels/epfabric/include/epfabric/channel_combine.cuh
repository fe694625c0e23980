// High-throughput combine: the rows that a dispatch brought go back the way they
// came, and their rank sums them; its own it reads where they are. For kernels, as
// channel_dispatch.cuh.
#pragma once

#include "channel_dispatch.cuh"
#include "platform_number.cuh"

namespace epfabric {

struct ChannelCombine {
  const unsigned char* rows;       // [rows, row_bytes] bfloat16
  const float* weights;            // [rows, topk], or nothing
  const int32_t* firsts;           // of the dispatch
  const int32_t* channel_firsts;   // of the dispatch
  const int32_t* positions;        // of the dispatch
  const int32_t* source_tokens;    // of the dispatch
  const unsigned char* biases[2];  // [count, row_bytes] bfloat16, or nothing
  unsigned char* combined;         // [count, row_bytes] bfloat16
  float* combined_weights;         // [count, topk]
  uint32_t count, reserved;
};

namespace detail {

struct ReturnBatch {
  uint32_t rows[kChannelRanks];  // the first row of the channel, by the rank that it goes to
  uint32_t totals[kChannelRanks];
  uint32_t sent[kChannelRanks];
  uint32_t ends[kChannelRanks];        // of what is sent, with that
  uint32_t starts[kChannelRanks + 1];  // of what is sent now, counted over all ranks
  uint32_t failed;
};

// By one thread a rank, then one: how much goes to each rank now, without waiting for any of them.
EPF_DEVICE inline void choose(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                              ReturnBatch& out) {
  const uint32_t to = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (to < world) {
    const uint32_t sent = out.sent[to] = out.ends[to];
    const uint32_t left = out.totals[to] - sent;
    const uint32_t wanted = sent + (left < kChannelBatch ? left : kChannelBatch);
    const uint32_t freed = wanted > buffer.shape.slots
                               ? slots_said(buffer, ChannelSaid::kFreed, number, channel, to)
                               : 0;
    const uint32_t room = freed + buffer.shape.slots - sent;
    out.starts[to + 1] = left < room ? left : room;
  }
  platform::block_barrier();
  if (to == 0) {
    out.starts[0] = 0;
    for (uint32_t i = 0; i < world; ++i) {
      const uint32_t room = kChannelBatch - out.starts[i];
      const uint32_t now = out.starts[i + 1] < room ? out.starts[i + 1] : room;
      out.starts[i + 1] = out.starts[i] + now;
      out.ends[i] = out.sent[i] + now;
    }
  }
  platform::block_barrier();
}

// By a warp: row i of a batch.
EPF_DEVICE inline void send_row(const ChannelBuffer& buffer, const ChannelCombine& call,
                                uint32_t channel, const ReturnBatch& out, const Share& share) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t i = share.row;
  const uint32_t me = platform::lane();
  uint32_t to = 0;
  while (out.starts[to + 1] <= i) ++to;
  const uint32_t position = out.sent[to] + i - out.starts[to];
  const uint64_t row = uint64_t{out.rows[to]} + position;
  const bool weighted = call.weights != nullptr && me < shape.topk;
  const float weight = weighted ? call.weights[row * shape.topk + me] : 0.0f;
  unsigned char* slot = slot_to(buffer, channel, to, position);
  unsigned char* const target = slot + shape.row_offset();
  copy_row(call.rows + row * shape.row_bytes, &target, 1, shape.row_bytes / 16, share);
  if (share.part != 0) return;
  if (me == 0 && !buffer.near(to)) {  // several ranks' rows of a token become one: forward_rows()
    reinterpret_cast<ChannelHeader*>(slot)->token = static_cast<uint32_t>(call.source_tokens[row]);
  }
  if (weighted) reinterpret_cast<float*>(slot + shape.weights_offset())[me] = weight;
}

EPF_DEVICE inline void return_channel(const ChannelBuffer& buffer, const ChannelCombine& call,
                                      uint64_t number, uint32_t channel) {
  EPF_SHARED ReturnBatch out;
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  const uint32_t channels = buffer.shape.channels;
  if (me < world) {
    const int32_t* mine = call.channel_firsts + me * channels + channel;
    const int32_t end = channel + 1 < channels ? mine[1] : call.firsts[me + 1];
    out.rows[me] = static_cast<uint32_t>(mine[0]);
    out.totals[me] = me != buffer.rank ? static_cast<uint32_t>(end - mine[0]) : 0;
    out.ends[me] = 0;
    if (!buffer.near(me)) tell_tokens(buffer, number, channel, me, 0, out.totals[me]);
  }
  if (me == 0) out.failed = 0;
  platform::block_barrier();
  uint32_t left = 0;
  uint32_t slow = 0;
  for (uint32_t to = 0; to < world; ++to) left += out.totals[to];
  Patience patience;
  while (left != 0 && out.failed == 0) {
    choose(buffer, number, channel, out);
    const uint32_t n = out.starts[world];
    if (n == 0) {
      if (me == 0) {
        while (out.sent[slow] == out.totals[slow]) ++slow;
        if (!patience.pause(buffer, ChannelAwaited::kSlots, slow)) out.failed = 1;
      }
      platform::block_barrier();
      continue;
    }
    patience = {};
    share_rows(n, [&](const Share& share) { send_row(buffer, call, channel, out, share); });
    platform::block_barrier();
    if (me < world && out.ends[me] != out.sent[me]) {
      tell_slots(buffer, ChannelSaid::kWritten, number, channel, me, out.ends[me]);
    }
    left -= n;
    platform::block_barrier();
  }
}

struct SumBatch {
  int32_t places[kChannelBatch][kChannelRanks];  // of the channel; -1: nothing comes from there
  // Of the token that a warp has in hand: biases, then rows.
  const unsigned char* rows[kChannelWarps][kChannelRanks + 2];
  uint32_t starts[kChannelRanks];  // by rank: rows of it that were needed before this batch
  uint32_t ends[kChannelRanks];    // and with it
  uint32_t failed;
};

// By one thread: waits for `count` more rows of a rank.
EPF_DEVICE inline void await_rows(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                                  uint32_t from, uint32_t count, SumBatch& in) {
  const bool far = buffer.far(from);
  const uint32_t end = in.ends[from] + count;
  in.starts[from] = in.ends[from];
  if (count == 0) return;
  in.ends[from] = end;
  Patience patience;
  for (;;) {
    const uint32_t written = far ? slots_signalled(buffer, ChannelSaid::kWritten, channel, from)
                                 : slots_said(buffer, ChannelSaid::kWritten, number, channel, from);
    if (written >= end) return;
    if (!patience.pause(buffer, ChannelAwaited::kRows, from)) break;
  }
  in.failed = 1;
}

// By a block: where the rows of a batch's tokens lie, once they are there.
EPF_DEVICE inline void find_places(const ChannelBuffer& buffer, const ChannelCombine& call,
                                   uint64_t number, uint32_t channel, Range batch, SumBatch& in) {
  const uint32_t world = buffer.shape.world;
  const uint32_t tokens = batch.end - batch.first;
  constexpr uint32_t kLooks = kChannelBatch / platform::kWarpSize;
  for (uint32_t from = warp(); from < world; from += warps()) {
    int32_t places[kLooks];
#pragma unroll
    for (uint32_t look = 0; look < kLooks; ++look) {
      const uint32_t i = look * platform::kWarpSize + platform::lane();
      places[look] = i < tokens ? call.positions[(uint64_t{batch.first} + i) * world + from] : -1;
    }
    uint32_t count = 0;
#pragma unroll
    for (uint32_t look = 0; look < kLooks; ++look) {
      const uint32_t i = look * platform::kWarpSize + platform::lane();
      if (i < tokens) in.places[i][from] = places[look];
      count += platform::count_bits(platform::ballot(places[look] >= 0));
    }
    if (platform::lane() != 0 || from == buffer.rank) continue;
    await_rows(buffer, number, channel, from, count, in);
  }
  platform::block_barrier();
}

struct Summed {
  uint32_t biases, rows;
  const float* own_weights;  // of the row that did not travel; nothing: there is none
};

// By a warp: what is added up to a token. The rows of this rank lie where its experts left them.
EPF_DEVICE inline Summed find_rows(const ChannelBuffer& buffer, const ChannelCombine& call,
                                   uint32_t channel, uint64_t token,
                                   const int32_t (&places)[kChannelRanks],
                                   const unsigned char* (&rows)[kChannelRanks + 2]) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t me = platform::lane();
  Summed found{};
  for (const unsigned char* bias : call.biases) {
    if (bias == nullptr) continue;
    if (me == 0) rows[found.biases] = bias + token * shape.row_bytes;
    ++found.biases;
  }
  uint32_t end = found.biases;
  if (places[buffer.rank] >= 0) {
    const int32_t first = call.channel_firsts[buffer.rank * shape.channels + channel];
    const uint64_t row = static_cast<uint32_t>(first + places[buffer.rank]);
    if (me == 0) rows[end] = call.rows + row * shape.row_bytes;
    found.own_weights = call.weights + row * shape.topk;
    ++end;
  }
  for (uint32_t first = 0; first < shape.world; first += platform::kWarpSize) {
    const uint32_t from = first + me;
    const int32_t place = from < shape.world && from != buffer.rank ? places[from] : -1;
    const uint64_t comes = platform::ballot(place >= 0);
    if (place >= 0) {
      rows[end + platform::count_bits(comes & ((uint64_t{1} << me) - 1))] =
          (buffer.far(from) ? slot_in(buffer, channel, from, static_cast<uint32_t>(place))
                            : slot_from(buffer, channel, from, static_cast<uint32_t>(place))) +
          shape.row_offset();
    }
    end += platform::count_bits(comes);
  }
  found.rows = end - found.biases;
  platform::warp_barrier();
  return found;
}

EPF_DEVICE inline void add_vector(float (&sums)[8], const ChannelVector& vector) {
  for (uint32_t w = 0; w < 4; ++w) {
    sums[2 * w] += lower_bf16(vector.words[w]);
    sums[2 * w + 1] += upper_bf16(vector.words[w]);
  }
}

EPF_DEVICE inline ChannelVector rounded_vector(const float (&sums)[8]) {
  ChannelVector vector;
  for (uint32_t w = 0; w < 4; ++w) {
    vector.words[w] = platform::bf16_pair(sums[2 * w], sums[2 * w + 1]);
  }
  return vector;
}

// By a warp: its share of the sum of up to two rows. A thread has eight loads under way.
EPF_DEVICE inline void sum_two(const unsigned char* const* rows, uint32_t n, uint32_t count,
                               const Share& share, unsigned char* out) {
  constexpr uint32_t kAtOnce = 4;
  const uint32_t end = share.end(count);
  for (uint32_t base = share.first(count) + platform::lane(); base < end;
       base += kAtOnce * platform::kWarpSize) {
    ChannelVector vectors[2][kAtOnce] = {};
#pragma unroll
    for (uint32_t which = 0; which < 2; ++which) {
      if (which >= n) break;
      const auto* row = reinterpret_cast<const ChannelVector*>(rows[which]);
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t v = base + i * platform::kWarpSize;
        if (v < end) vectors[which][i] = row[v];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t v = base + i * platform::kWarpSize;
      ChannelVector sum = vectors[0][i];
      for (uint32_t w = 0; w < 4; ++w) {
        sum.words[w] = platform::add_bf16_pairs(sum.words[w], vectors[1][i].words[w]);
      }
      if (v < end) reinterpret_cast<ChannelVector*>(out)[v] = sum;
    }
  }
}

// By a warp: its share of the sum of `n` rows, of which a thread loads some before it adds them.
EPF_DEVICE inline void sum_rows(const unsigned char* const* rows, uint32_t n, uint32_t count,
                                const Share& share, unsigned char* out) {
  if (n <= 2) return sum_two(rows, n, count, share, out);
  constexpr uint32_t kAtOnce = 4;
  const uint32_t end = share.end(count);
  for (uint32_t v = share.first(count) + platform::lane(); v < end; v += platform::kWarpSize) {
    float sums[8] = {};
    for (uint32_t first = 0; first < n; first += kAtOnce) {
      ChannelVector vectors[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (first + i < n) vectors[i] = reinterpret_cast<const ChannelVector*>(rows[first + i])[v];
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (first + i < n) add_vector(sums, vectors[i]);
      }
    }
    reinterpret_cast<ChannelVector*>(out)[v] = rounded_vector(sums);
  }
}

// By a warp: its share of a token of a batch.
EPF_DEVICE inline void sum_token(const ChannelBuffer& buffer, const ChannelCombine& call,
                                 uint32_t channel, uint32_t first, const Share& share,
                                 SumBatch& in) {
  const ChannelShape& shape = buffer.shape;
  const uint64_t token = uint64_t{first} + share.row;
  auto& rows = in.rows[warp()];
  const Summed found = find_rows(buffer, call, channel, token, in.places[share.row], rows);
  const uint32_t end = found.biases + found.rows;
  sum_rows(rows, end, shape.row_bytes / 16, share, call.combined + token * shape.row_bytes);
  const uint32_t me = platform::lane();
  if (share.part == 0 && call.combined_weights != nullptr && me < shape.topk) {
    float sum = found.own_weights != nullptr ? found.own_weights[me] : 0.0f;
    for (uint32_t n = found.biases + (found.own_weights != nullptr ? 1 : 0); n < end; ++n) {
      const unsigned char* slot = rows[n] - shape.row_offset();
      sum += reinterpret_cast<const float*>(slot + shape.weights_offset())[me];
    }
    call.combined_weights[token * shape.topk + me] = sum;
  }
  platform::warp_barrier();  // before the next token's rows
}

EPF_DEVICE inline void sum_channel(const ChannelBuffer& buffer, const ChannelCombine& call,
                                   uint64_t number, uint32_t channel, SumBatch& in) {
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (me < world) in.starts[me] = in.ends[me] = 0;
  if (me == 0) in.failed = 0;
  const Range range = channel_range(call.count, buffer.shape.channels, channel);
  const uint32_t step = kChannelBatch < buffer.shape.slots ? kChannelBatch : buffer.shape.slots;
  for (uint32_t first = range.first; first < range.end; first += step) {
    const Range batch{first, first + step < range.end ? first + step : range.end};
    platform::block_barrier();
    find_places(buffer, call, number, channel, batch, in);
    if (in.failed != 0) return;
    share_rows(batch.end - batch.first, [&](const Share& share) {
      sum_token(buffer, call, channel, batch.first, share, in);
    });
    platform::block_barrier();
    if (me < world && me != buffer.rank && buffer.near(me) && in.ends[me] != in.starts[me]) {
      tell_slots(buffer, ChannelSaid::kFreed, number, channel, me, in.ends[me]);
    }
    for_far(buffer, [&](uint32_t from) {
      signal_slots(buffer, ChannelSaid::kFreed, channel, from, {in.starts[from], in.ends[from]});
    });
  }
  count_slots(buffer, ChannelSaid::kWritten, channel, [&](uint32_t from) { return in.ends[from]; });
}

}  // namespace detail
}  // namespace epfabric
