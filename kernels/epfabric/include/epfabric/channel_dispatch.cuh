// High-throughput dispatch within a node: each token once to every rank that it goes to, through a
// ring for each channel and pair of ranks, in order; what stays on its rank takes no ring. For
// kernels, after meet(); by a grid that is resident as a whole, two blocks a channel: an even one
// sends, an odd one receives.
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
  int32_t places[kChannelBatch][kChannelRanks];          // of the channel; -1: does not go there
  unsigned char* targets[kChannelWarps][kChannelRanks];  // of the token that a warp has in hand
  uint64_t own_first;                                    // the first row that stays on this rank
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
  if (to == buffer.rank) return;  // no ring
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
    call.positions[uint64_t{batch.first} * world + unit] = out.places[unit / world][unit % world];
  }
}

// What stands before a token's bytes: lane k has the k-th choice.
struct ChannelChoice {
  int64_t expert = -1;
  float weight = 0;
};

// By a warp: what stands before the bytes of row `row` here.
EPF_DEVICE inline void put_header(const ChannelShape& shape, const ChannelDispatch& call,
                                  uint64_t row, uint32_t token, const ChannelChoice& choice,
                                  const float* scales) {
  const uint32_t me = platform::lane();
  if (me == 0) call.source_tokens[row] = static_cast<int32_t>(token);
  if (me < shape.topk) {
    call.received_topk[row * shape.topk + me] = choice.expert;
    if (call.received_weights != nullptr) {
      call.received_weights[row * shape.topk + me] = choice.weight;
    }
  }
  for (uint32_t i = me; i < shape.scales; i += platform::kWarpSize) {
    call.received_scales[row * shape.scales + i] = scales[i];
  }
}

// By a warp: its share of a token of a batch, to all ranks that the token goes to.
EPF_DEVICE inline void send_token(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                  uint32_t channel, uint32_t first, const Share& share,
                                  ChannelBatch& out) {
  const ChannelShape& shape = buffer.shape;
  const uint64_t token = uint64_t{first} + share.row;
  const auto& places = out.places[share.row];
  auto& targets = out.targets[warp()];
  const uint64_t own_first = out.own_first;
  const uint32_t me = platform::lane();
  for (uint32_t to = me; to < shape.world; to += platform::kWarpSize) {
    unsigned char* target = nullptr;
    if (to == buffer.rank) {
      const uint64_t row = own_first + static_cast<uint32_t>(places[to]);
      const bool kept = places[to] >= 0 && row < call.rows;
      if (kept) target = call.received + row * shape.row_bytes;
    } else if (places[to] >= 0) {
      target = buffer.slot(to, channel, buffer.rank, static_cast<uint32_t>(places[to])) +
               shape.row_offset();
    }
    targets[to] = target;
  }
  int64_t named = -1;
  float weight = 0;
  if (me < shape.topk) {
    named = call.topk[token * shape.topk + me];
    if (call.weights != nullptr) weight = call.weights[token * shape.topk + me];
  }
  const float* scales = call.scales + token * shape.scales;
  platform::warp_barrier();
  copy_row(call.tokens + token * shape.row_bytes, targets, shape.world, shape.row_bytes / 16,
           share);
  for (uint32_t to = 0; to < shape.world; ++to) {
    if (share.part != 0 || targets[to] == nullptr) continue;
    const int64_t expert = named - int64_t{to} * call.local_experts;
    const bool there = named >= 0 && expert >= 0 && expert < call.local_experts;
    const ChannelChoice choice{there ? expert : -1, there ? weight : 0.0f};
    if (to == buffer.rank) {
      put_header(shape, call, own_first + static_cast<uint32_t>(places[to]),
                 static_cast<uint32_t>(token), choice, scales);
      continue;
    }
    unsigned char* slot = targets[to] - shape.row_offset();
    if (me == 0) reinterpret_cast<ChannelHeader*>(slot)->token = static_cast<uint32_t>(token);
    if (me < shape.topk) {
      reinterpret_cast<int32_t*>(slot + sizeof(ChannelHeader))[me] =
          static_cast<int32_t>(choice.expert);
      reinterpret_cast<float*>(slot + shape.weights_offset())[me] = choice.weight;
    }
    for (uint32_t i = me; i < shape.scales; i += platform::kWarpSize) {
      reinterpret_cast<float*>(slot + shape.scales_offset())[i] = scales[i];
    }
  }
  platform::warp_barrier();  // before the next token's targets
}

// By a warp: how many of the tokens [begin, end) go to rank `to`.
EPF_DEVICE inline uint32_t count_tokens(const ChannelDispatch& call, uint32_t world, uint32_t to,
                                        uint32_t begin, uint32_t end) {
  uint32_t count = 0;
  const uint32_t step = warps() * platform::kWarpSize;
  for (uint32_t first = begin + warp() * platform::kWarpSize; first < end; first += step) {
    const uint32_t token = first + platform::lane();
    const bool goes = token < end && call.in_rank[uint64_t{token} * world + to] != 0;
    count += platform::count_bits(platform::ballot(goes));
  }
  return count;
}

// By a block: tells each destination how many tokens come on this channel, and after how many.
EPF_DEVICE inline void announce(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                uint64_t number, uint32_t channel, Range range, ChannelBatch& out) {
  EPF_SHARED uint32_t before[kChannelRanks];
  EPF_SHARED uint32_t within[kChannelRanks];
  const uint32_t world = buffer.shape.world;
  const uint32_t me = platform::thread();
  if (me < world) before[me] = within[me] = 0;
  platform::block_barrier();
  for (uint32_t to = 0; to < world; ++to) {
    const uint32_t earlier = count_tokens(call, world, to, 0, range.first);
    const uint32_t here = count_tokens(call, world, to, range.first, range.end);
    if (platform::lane() != 0) continue;
    if (earlier != 0) platform::add_block(before + to, earlier);
    if (here != 0) platform::add_block(within + to, here);
  }
  platform::block_barrier();
  if (me >= world) return;
  if (me == buffer.rank) {
    const uint32_t first = static_cast<uint32_t>(call.firsts[me]) + before[me];
    call.channel_firsts[me * buffer.shape.channels + channel] = static_cast<int32_t>(first);
    out.own_first = first;
    return;
  }
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
  announce(buffer, call, number, channel, range, out);
  if (me < world) out.ends[me] = 0;
  if (me == 0) out.failed = 0;
  const uint32_t step = kChannelBatch < buffer.shape.slots ? kChannelBatch : buffer.shape.slots;
  for (uint32_t first = range.first; first < range.end; first += step) {
    const Range batch{first, first + step < range.end ? first + step : range.end};
    platform::block_barrier();
    place_batch(buffer, call, number, channel, batch, out);
    if (out.failed != 0) return;
    share_rows(batch.end - batch.first, [&](const Share& share) {
      send_token(buffer, call, channel, batch.first, share, out);
    });
    platform::block_barrier();
    if (me < world && me != buffer.rank && out.ends[me] != out.starts[me]) {
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
  in.totals[from] = in.taken[from] = 0;
  if (from == buffer.rank) return;  // its sending block lays these out
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

// By a warp: message i of a batch becomes a row.
EPF_DEVICE inline void lay_out(const ChannelBuffer& buffer, const ChannelDispatch& call,
                               uint32_t channel, const ChannelSources& in, const Share& share) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t i = share.row;
  const uint32_t me = platform::lane();
  const uint32_t from = source_at(in, i);
  const uint32_t position = in.taken[from] + i - in.starts[from];
  const uint64_t row = uint64_t{in.rows[from]} + position;
  if (row >= call.rows) return;
  const unsigned char* slot = buffer.slot(buffer.rank, channel, from, position);
  const uint32_t token = reinterpret_cast<const ChannelHeader*>(slot)->token;
  ChannelChoice choice;
  if (me < shape.topk) {
    choice.expert = reinterpret_cast<const int32_t*>(slot + sizeof(ChannelHeader))[me];
    choice.weight = reinterpret_cast<const float*>(slot + shape.weights_offset())[me];
  }
  unsigned char* const target = call.received + row * shape.row_bytes;
  copy_row(slot + shape.row_offset(), &target, 1, shape.row_bytes / 16, share);
  if (share.part != 0) return;
  put_header(shape, call, row, token, choice,
             reinterpret_cast<const float*>(slot + shape.scales_offset()));
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
    share_rows(n, [&](const Share& share) { lay_out(buffer, call, channel, in, share); });
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
