// High-throughput dispatch within a node: each token once to every rank that it goes to, through a
// ring for each channel and pair of ranks, in order. For kernels, after meet(); by a grid that is
// resident as a whole, two blocks a channel: an even one sends, an odd one receives.
#pragma once

#include "channel_buffer.cuh"

namespace epfabric {

struct ChannelDispatch {
  const unsigned char* tokens;  // [count, row_bytes]
  const float* scales;          // [count, scales], or nothing
  const int64_t* topk;          // [count, topk], or nothing
  const float* weights;         // [count, topk], or nothing
  const uint8_t* in_rank;       // [count, world]
  const int32_t* firsts;        // [world + 1], of meet(): the first row of each source
  int32_t* positions;           // [count, world]: the how-manieth of its channel, -1: not sent
  int32_t* channel_firsts;      // [world, channels]: the first row of each source's channel
  int32_t* source_tokens;       // [rows]
  unsigned char* received;      // [rows, row_bytes]
  float* received_scales;       // [rows, scales]
  int64_t* received_topk;       // [rows, topk]: expert of this rank, or -1
  float* received_weights;      // [rows, topk]: 0 where there is no expert
  uint32_t count, local_experts;
  uint32_t rows;  // that there is room for
  uint32_t reserved;
};

namespace detail {

struct ChannelHeader {
  uint32_t token, reserved[3];
};

// The tokens of a channel.
struct Range {
  uint32_t first, end;
};

EPF_DEVICE inline Range channel_range(uint32_t count, uint32_t channels, uint32_t channel) {
  const uint32_t each = (count + channels - 1) / channels;
  const uint32_t first = each * channel < count ? each * channel : count;
  return {first, first + each < count ? first + each : count};
}

struct ChannelBatch {
  uint32_t starts[kChannelRanks];                        // by destination: sent before this batch
  uint32_t ends[kChannelRanks];                          // and with it
  int32_t places[kChannelBatch][kChannelRanks];          // in the ring; -1: does not go there
  unsigned char* targets[kChannelBatch][kChannelRanks];  // or nothing
  uint32_t failed;
};

// By one thread a destination: counts the batch's tokens that go there; waits for room.
EPF_DEVICE inline void count_batch(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                                   uint32_t tokens, ChannelBatch& out) {
  const uint32_t to = platform::thread();
  if (to >= buffer.shape.world) return;
  uint32_t position = out.starts[to] = out.ends[to];
  for (uint32_t i = 0; i < tokens; ++i) {
    if (out.places[i][to] != 0) {
      out.places[i][to] = static_cast<int32_t>(position++);
    } else {
      out.places[i][to] = -1;
    }
  }
  out.ends[to] = position;
  if (position == out.starts[to] || position <= buffer.shape.slots) return;
  const uint64_t* head = buffer.word(buffer.rank, ChannelWindow{}.heads, channel, to);
  Patience patience;
  for (uint32_t freed = 0;;) {
    if (!said(head, number, freed)) freed = 0;
    if (position - freed <= buffer.shape.slots) return;
    if (!patience.pause(buffer, ChannelAwaited::kSlots, to)) break;
  }
  out.failed = 1;
}

// By a block: where the batch's tokens go.
EPF_DEVICE inline void place_batch(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                   uint64_t number, uint32_t channel, Range batch,
                                   ChannelBatch& out) {
  const uint32_t world = buffer.shape.world;
  const uint32_t tokens = batch.end - batch.first;
  for (uint32_t unit = platform::thread(); unit < tokens * world; unit += platform::threads()) {
    out.places[unit / world][unit % world] = call.in_rank[uint64_t{batch.first} * world + unit];
  }
  platform::block_barrier();
  count_batch(buffer, number, channel, tokens, out);
  platform::block_barrier();
  for (uint32_t unit = platform::thread(); unit < tokens * world; unit += platform::threads()) {
    const uint32_t to = unit % world;
    const int32_t place = out.places[unit / world][to];
    call.positions[uint64_t{batch.first} * world + unit] = place;
    out.targets[unit / world][to] =
        place < 0 ? nullptr : buffer.slot(to, channel, buffer.rank, static_cast<uint32_t>(place));
  }
  platform::block_barrier();
}

EPF_DEVICE inline void copy_batch(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                  Range batch, const ChannelBatch& out) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t vectors = shape.row_bytes / 16;
  const uint32_t tokens = batch.end - batch.first;
  const auto* from =
      reinterpret_cast<const ChannelVector*>(call.tokens) + uint64_t{batch.first} * vectors;
  move_vectors(
      tokens * vectors, [&](uint32_t unit) { return from[unit]; },
      [&](uint32_t unit, const ChannelVector& vector) {
        const uint32_t i = unit / vectors;
        for (uint32_t to = 0; to < shape.world; ++to) {
          unsigned char* target = out.targets[i][to];
          if (target == nullptr) continue;
          reinterpret_cast<ChannelVector*>(target + shape.row_offset())[unit - i * vectors] =
              vector;
        }
      });
}

// What stands before a token's bytes. `unit`: one word for one destination.
EPF_DEVICE inline void copy_headers(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                    Range batch, const ChannelBatch& out) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t words = 1 + 2 * shape.topk + shape.scales;
  const uint32_t each = words * shape.world;
  const uint32_t tokens = batch.end - batch.first;
  for (uint32_t unit = platform::thread(); unit < tokens * each; unit += platform::threads()) {
    const uint32_t i = unit / each;
    const uint32_t to = unit % each / words;
    uint32_t word = unit % words;
    const uint64_t token = batch.first + i;
    unsigned char* target = out.targets[i][to];
    if (target == nullptr) continue;
    if (word == 0) {
      reinterpret_cast<ChannelHeader*>(target)->token = static_cast<uint32_t>(token);
      continue;
    }
    word -= 1;
    if (word < shape.topk) {
      const int64_t expert =
          call.topk[token * shape.topk + word] - int64_t{to} * call.local_experts;
      const bool there = expert >= 0 && expert < call.local_experts;
      reinterpret_cast<int32_t*>(target + sizeof(ChannelHeader))[word] =
          there ? static_cast<int32_t>(expert) : -1;
      reinterpret_cast<float*>(target + shape.weights_offset())[word] =
          there && call.weights != nullptr ? call.weights[token * shape.topk + word] : 0.0f;
      continue;
    }
    if (word < 2 * shape.topk) continue;
    word -= 2 * shape.topk;
    reinterpret_cast<float*>(target + shape.scales_offset())[word] =
        call.scales[token * shape.scales + word];
  }
}

// By a block: tells each destination how many tokens come on this channel, and after how many.
EPF_DEVICE inline void announce(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                uint64_t number, uint32_t channel, Range range) {
  EPF_SHARED uint32_t before[kChannelRanks];
  EPF_SHARED uint32_t within[kChannelRanks];
  const uint32_t world = buffer.shape.world;
  const uint32_t me = platform::thread();
  if (me < world) before[me] = within[me] = 0;
  platform::block_barrier();
  for (uint32_t i = me; i < range.end * world; i += platform::threads()) {
    if (call.in_rank[i] == 0) continue;
    platform::add_block(i / world < range.first ? before + i % world : within + i % world, 1);
  }
  platform::block_barrier();
  if (me >= world) return;
  const ChannelWindow at{};
  platform::store_release(buffer.word(me, at.firsts, channel, buffer.rank),
                          say(number, before[me]));
  platform::store_release(buffer.word(me, at.totals, channel, buffer.rank),
                          say(number, within[me]));
}

EPF_DEVICE inline void send_channel(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                    uint64_t number, uint32_t channel) {
  EPF_SHARED ChannelBatch out;
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  const Range range = channel_range(call.count, buffer.shape.channels, channel);
  announce(buffer, call, number, channel, range);
  if (me < world) out.ends[me] = 0;
  if (me == 0) out.failed = 0;
  const uint32_t step = kChannelBatch < buffer.shape.slots ? kChannelBatch : buffer.shape.slots;
  for (uint32_t first = range.first; first < range.end; first += step) {
    const Range batch{first, first + step < range.end ? first + step : range.end};
    platform::block_barrier();
    place_batch(buffer, call, number, channel, batch, out);
    if (out.failed != 0) return;
    copy_headers(buffer, call, batch, out);
    copy_batch(buffer, call, batch, out);
    platform::block_barrier();
    if (me < world && out.ends[me] != out.starts[me]) {
      platform::store_release(buffer.word(me, ChannelWindow{}.tails, channel, buffer.rank),
                              say(number, out.ends[me]));
    }
  }
}

struct ChannelSources {
  uint32_t rows[kChannelRanks];    // of the channel's first token
  uint32_t totals[kChannelRanks];  // tokens of the channel
  uint32_t taken[kChannelRanks];
  uint32_t starts[kChannelRanks + 1];  // of what is taken now, counted over all sources
  uint32_t failed;
};

// By one thread a source: what will come.
EPF_DEVICE inline void learn(const ChannelBuffer& buffer, const ChannelDispatch& call,
                             uint64_t number, uint32_t channel, ChannelSources& in) {
  const uint32_t from = platform::thread();
  if (from >= buffer.shape.world) return;
  const ChannelWindow at{};
  uint32_t first = 0;
  uint32_t total = 0;
  const bool known = await_said(buffer, buffer.word(buffer.rank, at.firsts, channel, from), number,
                                ChannelAwaited::kTokens, from, first) &&
                     await_said(buffer, buffer.word(buffer.rank, at.totals, channel, from), number,
                                ChannelAwaited::kTokens, from, total);
  if (!known) in.failed = 1;
  in.rows[from] = static_cast<uint32_t>(call.firsts[from]) + first;
  in.totals[from] = known ? total : 0;
  in.taken[from] = 0;
  call.channel_firsts[from * buffer.shape.channels + channel] = static_cast<int32_t>(in.rows[from]);
}

// By one thread a source, then one: how much of each source is taken now; 0 in all: nothing is
// there.
EPF_DEVICE inline void take(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                            ChannelSources& in) {
  const uint32_t from = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (from < world) {
    uint32_t written = 0;
    const uint64_t* tail = buffer.word(buffer.rank, ChannelWindow{}.tails, channel, from);
    if (in.taken[from] == in.totals[from] || !said(tail, number, written)) written = in.taken[from];
    in.starts[from + 1] = written - in.taken[from];
  }
  platform::block_barrier();
  if (from == 0) {
    in.starts[0] = 0;
    for (uint32_t i = 0; i < world; ++i) {
      const uint32_t room = kChannelBatch - in.starts[i];
      in.starts[i + 1] = in.starts[i] + (in.starts[i + 1] < room ? in.starts[i + 1] : room);
    }
  }
  platform::block_barrier();
}

// Which source message i of a batch is from.
EPF_DEVICE inline uint32_t source_at(const ChannelSources& in, uint32_t i) {
  uint32_t from = 0;
  while (in.starts[from + 1] <= i) ++from;
  return from;
}

EPF_DEVICE inline void lay_out_rows(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                    uint32_t channel, const ChannelSources& in) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t vectors = shape.row_bytes / 16;
  move_vectors(
      in.starts[shape.world] * vectors,
      [&](uint32_t unit) {
        const uint32_t i = unit / vectors;
        const uint32_t from = source_at(in, i);
        const auto* slot =
            buffer.slot(buffer.rank, channel, from, in.taken[from] + i - in.starts[from]);
        return reinterpret_cast<const ChannelVector*>(slot +
                                                      shape.row_offset())[unit - i * vectors];
      },
      [&](uint32_t unit, const ChannelVector& vector) {
        const uint32_t i = unit / vectors;
        const uint32_t from = source_at(in, i);
        const uint64_t row = in.rows[from] + in.taken[from] + i - in.starts[from];
        if (row >= call.rows) return;
        reinterpret_cast<ChannelVector*>(call.received)[row * vectors + unit - i * vectors] =
            vector;
      });
}

// What stood before the tokens' bytes.
EPF_DEVICE inline void lay_out_headers(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                       uint32_t channel, const ChannelSources& in) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t each = 1 + shape.topk + shape.scales;
  const uint32_t units = in.starts[shape.world] * each;
  for (uint32_t unit = platform::thread(); unit < units; unit += platform::threads()) {
    const uint32_t i = unit / each;
    uint32_t word = unit - i * each;
    const uint32_t from = source_at(in, i);
    const uint32_t position = in.taken[from] + i - in.starts[from];
    const uint64_t row = in.rows[from] + position;
    if (row >= call.rows) continue;
    const unsigned char* slot = buffer.slot(buffer.rank, channel, from, position);
    if (word == 0) {
      const auto* header = reinterpret_cast<const ChannelHeader*>(slot);
      call.source_tokens[row] = static_cast<int32_t>(header->token);
      continue;
    }
    word -= 1;
    if (word < shape.topk) {
      call.received_topk[row * shape.topk + word] =
          reinterpret_cast<const int32_t*>(slot + sizeof(ChannelHeader))[word];
      if (call.received_weights == nullptr) continue;
      call.received_weights[row * shape.topk + word] =
          reinterpret_cast<const float*>(slot + shape.weights_offset())[word];
      continue;
    }
    word -= shape.topk;
    call.received_scales[row * shape.scales + word] =
        reinterpret_cast<const float*>(slot + shape.scales_offset())[word];
  }
}

EPF_DEVICE inline void receive_channel(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                       uint64_t number, uint32_t channel) {
  EPF_SHARED ChannelSources in;
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (me == 0) in.failed = 0;
  platform::block_barrier();
  learn(buffer, call, number, channel, in);
  platform::block_barrier();
  uint32_t left = 0;
  uint32_t slow = 0;
  for (uint32_t from = world; from-- > 0;) left += in.totals[from];
  Patience patience;
  while (left != 0 && in.failed == 0) {
    take(buffer, number, channel, in);
    const uint32_t n = in.starts[world];
    if (n == 0) {
      if (me == 0) {
        while (in.taken[slow] == in.totals[slow]) ++slow;
        if (!patience.pause(buffer, ChannelAwaited::kTokens, slow)) in.failed = 1;
      }
      platform::block_barrier();
      continue;
    }
    patience = {};
    lay_out_headers(buffer, call, channel, in);
    lay_out_rows(buffer, call, channel, in);
    platform::block_barrier();
    if (me < world && in.starts[me + 1] != in.starts[me]) {
      in.taken[me] += in.starts[me + 1] - in.starts[me];
      // Partner: place_batch() of the source, which writes there again.
      platform::store_release(buffer.word(me, ChannelWindow{}.heads, channel, buffer.rank),
                              say(number, in.taken[me]));
    }
    left -= n;
    platform::block_barrier();
  }
}

}  // namespace detail

EPF_DEVICE inline void channel_dispatch(const ChannelBuffer& buffer, const ChannelDispatch& call) {
  if (detail::failed(buffer)) return;
  const uint64_t number = platform::load_device(&buffer.state->calls) - 1;
  const uint32_t channel = platform::block() / 2;
  if (platform::block() % 2 == 0) {
    detail::send_channel(buffer, call, number, channel);
  } else {
    detail::receive_channel(buffer, call, number, channel);
  }
}

}  // namespace epfabric
