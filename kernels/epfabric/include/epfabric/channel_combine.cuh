// High-throughput combine within a node: the rows that a dispatch brought go back the way they
// came, and their rank sums them. For kernels, as channel_dispatch.cuh.
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
  uint32_t starts[kChannelRanks + 1];  // of what is sent now, counted over all ranks
  uint32_t failed;
};

// By one thread a rank, then one: how much goes to each rank now, without waiting for any of them.
EPF_DEVICE inline void choose(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                              ReturnBatch& out) {
  const uint32_t to = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (to < world) {
    uint32_t freed = 0;
    const uint64_t* head = buffer.word(buffer.rank, ChannelWindow{}.heads, channel, to);
    if (!said(head, number, freed)) freed = 0;
    const uint32_t left = out.totals[to] - out.sent[to];
    const uint32_t room = freed + buffer.shape.slots - out.sent[to];
    out.starts[to + 1] = left < room ? left : room;
  }
  platform::block_barrier();
  if (to == 0) {
    out.starts[0] = 0;
    for (uint32_t i = 0; i < world; ++i) {
      const uint32_t room = kChannelBatch - out.starts[i];
      out.starts[i + 1] = out.starts[i] + (out.starts[i + 1] < room ? out.starts[i + 1] : room);
    }
  }
  platform::block_barrier();
}

EPF_DEVICE inline void copy_back(const ChannelBuffer& buffer, const ChannelCombine& call,
                                 uint32_t channel, const ReturnBatch& out) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t vectors = shape.row_bytes / 16;
  const uint32_t n = out.starts[shape.world];
  const auto destination = [&](uint32_t i) {
    uint32_t to = 0;
    while (out.starts[to + 1] <= i) ++to;
    return to;
  };
  move_vectors(
      n * vectors,
      [&](uint32_t unit) {
        const uint32_t i = unit / vectors;
        const uint32_t to = destination(i);
        const uint64_t row = out.rows[to] + out.sent[to] + i - out.starts[to];
        return reinterpret_cast<const ChannelVector*>(
            call.rows)[row * vectors + unit - i * vectors];
      },
      [&](uint32_t unit, const ChannelVector& vector) {
        const uint32_t i = unit / vectors;
        const uint32_t to = destination(i);
        auto* slot = buffer.slot(to, channel, buffer.rank, out.sent[to] + i - out.starts[to]);
        reinterpret_cast<ChannelVector*>(slot + shape.row_offset())[unit - i * vectors] = vector;
      });
  if (call.weights == nullptr) return;
  for (uint32_t unit = platform::thread(); unit < n * shape.topk; unit += platform::threads()) {
    const uint32_t i = unit / shape.topk;
    const uint32_t k = unit - i * shape.topk;
    const uint32_t to = destination(i);
    const uint32_t position = out.sent[to] + i - out.starts[to];
    auto* slot = buffer.slot(to, channel, buffer.rank, position);
    reinterpret_cast<float*>(slot + shape.weights_offset())[k] =
        call.weights[uint64_t{out.rows[to] + position} * shape.topk + k];
  }
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
    out.totals[me] = static_cast<uint32_t>(end - mine[0]);
    out.sent[me] = 0;
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
    copy_back(buffer, call, channel, out);
    platform::block_barrier();
    if (me < world && out.starts[me + 1] != out.starts[me]) {
      out.sent[me] += out.starts[me + 1] - out.starts[me];
      platform::store_release(buffer.word(me, ChannelWindow{}.tails, channel, buffer.rank),
                              say(number, out.sent[me]));
    }
    left -= n;
    platform::block_barrier();
  }
}

struct SumBatch {
  int32_t places[kChannelBatch][kChannelRanks];  // in the rings; -1: nothing comes from there
  const unsigned char* slots[kChannelBatch][kChannelRanks];
  uint32_t counts[kChannelBatch];
  uint32_t ends[kChannelRanks];  // by rank: rows of it that are needed
  uint32_t failed;
};

// By one thread a rank: waits for the rows of a batch.
EPF_DEVICE inline void await_rows(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                                  uint32_t tokens, SumBatch& in) {
  const uint32_t from = platform::thread();
  if (from >= buffer.shape.world) return;
  uint32_t end = in.ends[from];
  for (uint32_t i = 0; i < tokens; ++i) {
    if (in.places[i][from] >= 0) end = static_cast<uint32_t>(in.places[i][from]) + 1;
  }
  if (end == in.ends[from]) return;
  in.ends[from] = end;
  const uint64_t* tail = buffer.word(buffer.rank, ChannelWindow{}.tails, channel, from);
  Patience patience;
  for (uint32_t written = 0;;) {
    if (said(tail, number, written) && written >= end) return;
    if (!patience.pause(buffer, ChannelAwaited::kRows, from)) break;
  }
  in.failed = 1;
}

// By a block: finds the rows of each token of a batch, once they are there.
EPF_DEVICE inline void find_slots(const ChannelBuffer& buffer, const ChannelCombine& call,
                                  uint64_t number, uint32_t channel, Range batch, SumBatch& in) {
  const uint32_t world = buffer.shape.world;
  const uint32_t tokens = batch.end - batch.first;
  for (uint32_t unit = platform::thread(); unit < tokens * world; unit += platform::threads()) {
    in.places[unit / world][unit % world] = call.positions[uint64_t{batch.first} * world + unit];
  }
  platform::block_barrier();
  await_rows(buffer, number, channel, tokens, in);
  const uint32_t i = platform::thread();
  if (i < tokens) {
    uint32_t count = 0;
    for (uint32_t from = 0; from < world; ++from) {
      const int32_t place = in.places[i][from];
      if (place < 0) continue;
      in.slots[i][count++] = buffer.slot(buffer.rank, channel, from, static_cast<uint32_t>(place));
    }
    in.counts[i] = count;
  }
  platform::block_barrier();
}

EPF_DEVICE inline void add_vector(float (&sums)[8], const ChannelVector& vector) {
  for (uint32_t w = 0; w < 4; ++w) {
    sums[2 * w] += lower_bf16(vector.words[w]);
    sums[2 * w + 1] += upper_bf16(vector.words[w]);
  }
}

EPF_DEVICE inline void sum_batch(const ChannelBuffer& buffer, const ChannelCombine& call,
                                 Range batch, const SumBatch& in) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t vectors = shape.row_bytes / 16;
  const uint32_t each = vectors + (call.combined_weights != nullptr ? shape.topk : 0);
  const uint32_t tokens = batch.end - batch.first;
  for (uint32_t unit = platform::thread(); unit < tokens * each; unit += platform::threads()) {
    const uint32_t i = unit / each;
    const uint32_t v = unit - i * each;
    const uint64_t token = batch.first + i;
    if (v >= vectors) {
      float sum = 0;
      const uint32_t k = v - vectors;
      for (uint32_t n = 0; n < in.counts[i]; ++n) {
        sum += reinterpret_cast<const float*>(in.slots[i][n] + shape.weights_offset())[k];
      }
      call.combined_weights[token * shape.topk + k] = sum;
      continue;
    }
    float sums[8] = {};
    for (const unsigned char* bias : call.biases) {
      if (bias == nullptr) continue;
      add_vector(sums, reinterpret_cast<const ChannelVector*>(bias)[token * vectors + v]);
    }
#pragma unroll 4
    for (uint32_t n = 0; n < in.counts[i]; ++n) {
      add_vector(sums,
                 reinterpret_cast<const ChannelVector*>(in.slots[i][n] + shape.row_offset())[v]);
    }
    ChannelVector out;
    for (uint32_t w = 0; w < 4; ++w) {
      out.words[w] = platform::bf16_pair(sums[2 * w], sums[2 * w + 1]);
    }
    reinterpret_cast<ChannelVector*>(call.combined)[token * vectors + v] = out;
  }
}

EPF_DEVICE inline void sum_channel(const ChannelBuffer& buffer, const ChannelCombine& call,
                                   uint64_t number, uint32_t channel) {
  EPF_SHARED SumBatch in;
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (me < world) in.ends[me] = 0;
  if (me == 0) in.failed = 0;
  const Range range = channel_range(call.count, buffer.shape.channels, channel);
  const uint32_t step = kChannelBatch < buffer.shape.slots ? kChannelBatch : buffer.shape.slots;
  for (uint32_t first = range.first; first < range.end; first += step) {
    const Range batch{first, first + step < range.end ? first + step : range.end};
    platform::block_barrier();
    find_slots(buffer, call, number, channel, batch, in);
    if (in.failed != 0) return;
    sum_batch(buffer, call, batch, in);
    platform::block_barrier();
    if (me < world) {
      platform::store_release(buffer.word(me, ChannelWindow{}.heads, channel, buffer.rank),
                              say(number, in.ends[me]));
    }
  }
}

}  // namespace detail

EPF_DEVICE inline void channel_combine(const ChannelBuffer& buffer, const ChannelCombine& call) {
  if (detail::failed(buffer)) return;
  const uint64_t number = platform::load_device(&buffer.state->calls) - 1;
  const uint32_t channel = platform::block() / 2;
  if (platform::block() % 2 == 0) {
    detail::return_channel(buffer, call, number, channel);
  } else {
    detail::sum_channel(buffer, call, number, channel);
  }
}

}  // namespace epfabric
