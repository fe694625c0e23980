// High-throughput dispatch: each token once to every rank of the node that it goes to, through a
// ring for each channel and pair of ranks, in order; what stays on its rank takes no ring. To
// another node it goes once, to the rank with the sender's place there, which forwards it to the
// ranks of its node (channel_forward.cuh). For kernels, after meet(); by a grid that is resident as
// a whole.
#pragma once

#include "channel_meet.cuh"

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
  uint32_t rows;   // that there is room for
  uint32_t fills;  // not 0: rows that nobody sends get -1 in received_topk
};

namespace detail {

// The tokens of a channel.
EPF_DEVICE inline Range channel_range(uint32_t count, uint32_t channels, uint32_t channel) {
  const uint32_t each = (count + channels - 1) / channels;
  const uint32_t first = each * channel < count ? each * channel : count;
  return {first, first + each < count ? first + each : count};
}

// Of these, those whose rows on this rank are laid out by the block that receives: so both blocks
// write about as much, and that one does not wait idly.
EPF_DEVICE inline Range kept_range(const Range& tokens) {
  return {tokens.first, tokens.first + (tokens.end - tokens.first) / 2};
}

struct ChannelBatch {
  uint32_t starts[kChannelRanks];  // by destination: sent before this batch
  uint32_t ends[kChannelRanks];    // and with it
  // Of the channel; -1: does not go there. The last column keeps a warp's tokens on banks of their
  // own.
  int32_t places[kChannelBatch][kChannelRanks + 1];
  unsigned char* targets[kChannelWarps][kChannelRanks];  // of the token that a warp has in hand
  uint64_t own_first;                                    // the first row that stays on this rank
  uint32_t own_begin;                                    // tokens before have their rows by keep()
  uint32_t failed;
};

// By a warp: where those of a batch's tokens lie that go to a destination; goes(i) says it of the
// i-th.
template <typename Goes>
EPF_DEVICE Range count_batch(uint32_t tokens, uint32_t to, ChannelBatch& out, Goes goes) {
  constexpr uint32_t kLooks = kChannelBatch / platform::kWarpSize;
  const uint32_t me = platform::lane();
  const uint32_t start = out.ends[to];
  bool is[kLooks];
#pragma unroll
  for (uint32_t look = 0; look < kLooks; ++look) {
    const uint32_t i = look * platform::kWarpSize + me;
    is[look] = i < tokens && goes(i);
  }
  uint32_t end = start;
#pragma unroll
  for (uint32_t look = 0; look < kLooks; ++look) {
    const uint32_t i = look * platform::kWarpSize + me;
    const uint64_t all = platform::ballot(is[look]);
    const uint32_t before = platform::count_bits(all & ((uint64_t{1} << me) - 1));
    if (i < tokens) out.places[i][to] = is[look] ? static_cast<int32_t>(end + before) : -1;
    end += platform::count_bits(all);
  }
  platform::warp_barrier();
  if (me == 0) {
    out.starts[to] = start;
    out.ends[to] = end;
  }
  return {start, end};
}

// By one thread: waits until there is room for slots; freed() says how many are free again.
template <typename Freed>
EPF_DEVICE void await_room(const ChannelBuffer& buffer, const Range& slots, uint32_t to,
                           ChannelBatch& out, Freed freed) {
  if (slots.end == slots.first || slots.end <= buffer.shape.slots) return;
  Patience patience;
  for (;;) {
    if (slots.end - freed() <= buffer.shape.slots) return;
    if (!patience.pause(buffer, ChannelAwaited::kSlots, to)) break;
  }
  out.failed = 1;
}

// Whether a token goes to a rank of this node, or to a far one and so to some of its node.
EPF_DEVICE inline bool goes(const ChannelBuffer& buffer, const uint8_t* in_rank, uint32_t to) {
  if (buffer.near(to)) return in_rank[to] != 0;
  if (!buffer.far(to)) return false;
  const uint32_t first = buffer.node_of(to) * buffer.node_ranks;
  bool any = false;
  for (uint32_t i = 0; i < buffer.node_ranks; ++i) any = any || in_rank[first + i] != 0;
  return any;
}

// By a block: where the batch's tokens go.
EPF_DEVICE inline void place_batch(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                   uint64_t number, uint32_t channel, Range batch,
                                   ChannelBatch& out) {
  const uint32_t world = buffer.shape.world;
  const uint32_t tokens = batch.end - batch.first;
  for (uint32_t to = warp(); to < world; to += warps()) {
    const uint64_t first = batch.first;
    const Range slots = count_batch(tokens, to, out, [&](uint32_t i) {
      return goes(buffer, call.in_rank + (first + i) * world, to);
    });
    for (uint32_t i = platform::lane(); i < tokens; i += platform::kWarpSize) {
      call.positions[(first + i) * world + to] = out.places[i][to];
    }
    if (platform::lane() != 0 || to == buffer.rank) continue;  // which has no ring
    await_room(buffer, slots, to, out, [&] {
      return buffer.far(to) ? slots_signalled(buffer, ChannelSaid::kFreed, channel, to)
                            : slots_said(buffer, ChannelSaid::kFreed, number, channel, to);
    });
  }
  platform::block_barrier();
}

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
      const bool kept = places[to] >= 0 && token >= out.own_begin && row < call.rows;
      if (kept) target = call.received + row * shape.row_bytes;
    } else if (places[to] >= 0) {
      const auto place = static_cast<uint32_t>(places[to]);
      target = (buffer.far(to) ? slot_out(buffer, channel, to, place)
                               : slot_to(buffer, channel, to, place)) +
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
  copy_row<true>(call.tokens + token * shape.row_bytes, targets, shape.world, shape.row_bytes / 16,
                 share, buffer.rank);
  for (uint32_t to = 0; to < shape.world; ++to) {
    if (share.part != 0 || targets[to] == nullptr) continue;
    // Of the rank's experts, or of those of its node.
    const bool far = buffer.far(to);
    const uint32_t first = far ? buffer.node_of(to) * buffer.node_ranks : to;
    const uint32_t experts = call.local_experts * (far ? buffer.node_ranks : 1);
    const int64_t expert = named - int64_t{first} * call.local_experts;
    const bool there = named >= 0 && expert >= 0 && expert < experts;
    const ChannelChoice choice{there ? expert : -1, there ? weight : 0.0f};
    if (to == buffer.rank) {
      put_header(shape, call, own_first + static_cast<uint32_t>(places[to]),
                 static_cast<uint32_t>(token), choice, scales);
      continue;
    }
    unsigned char* slot = targets[to] - shape.row_offset();
    put_slot(shape, slot, static_cast<uint32_t>(token), choice, scales);
    if (far && me == 0) {
      const uint8_t* in_rank = call.in_rank + token * shape.world + first;
      uint64_t ranks = 0;
      for (uint32_t i = 0; i < buffer.node_ranks; ++i) ranks |= uint64_t{in_rank[i] != 0} << i;
      reinterpret_cast<ChannelHeader*>(slot)->ranks = ranks;
    }
  }
  platform::warp_barrier();  // before the next token's targets
}

// By a block: adds to `sum` how many of the tokens there are of which wanted(flags by rank) holds.
template <typename Wanted>
EPF_DEVICE void count_tokens(const ChannelDispatch& call, uint32_t world, const Range& tokens,
                             uint32_t* sum, Wanted wanted) {
  constexpr uint32_t kLooks = 4;  // at once
  uint32_t count = 0;
  const uint32_t step = warps() * platform::kWarpSize;
  const uint32_t begin = tokens.first + warp() * platform::kWarpSize;
  for (uint32_t first = begin; first < tokens.end; first += kLooks * step) {
    bool is[kLooks];
#pragma unroll
    for (uint32_t look = 0; look < kLooks; ++look) {
      const uint32_t token = first + look * step + platform::lane();
      is[look] = token < tokens.end && wanted(call.in_rank + uint64_t{token} * world);
    }
#pragma unroll
    for (uint32_t look = 0; look < kLooks; ++look) {
      count += platform::count_bits(platform::ballot(is[look]));
    }
  }
  if (platform::lane() == 0 && count != 0) platform::add_block(sum, count);
}

// By a block: tells each destination how many tokens come on this channel, and after how many.
EPF_DEVICE inline void announce(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                uint64_t number, uint32_t channel, Range range, ChannelBatch& out) {
  EPF_SHARED uint32_t before[kChannelRanks];
  EPF_SHARED uint32_t within[kChannelRanks];
  EPF_SHARED uint32_t for_node[kChannelRanks];  // by far rank
  const uint32_t world = buffer.shape.world;
  const uint32_t me = platform::thread();
  if (me < world) before[me] = within[me] = for_node[me] = 0;
  platform::block_barrier();
  for (uint32_t to = 0; to < world; ++to) {
    const auto in = [to](const uint8_t* in_rank) { return in_rank[to] != 0; };
    count_tokens(call, world, {0, range.first}, before + to, in);
    count_tokens(call, world, range, within + to, in);
    if (!buffer.far(to)) continue;
    count_tokens(call, world, range, for_node + to,
                 [&](const uint8_t* in_rank) { return goes(buffer, in_rank, to); });
  }
  platform::block_barrier();
  for_far(buffer,
          [&](uint32_t to) { post_record(buffer, channel, to, for_node[to], before, within); });
  if (me >= world || !buffer.near(me)) return;
  if (me == buffer.rank) {
    const uint32_t first = static_cast<uint32_t>(call.firsts[me]) + before[me];
    call.channel_firsts[me * buffer.shape.channels + channel] = static_cast<int32_t>(first);
    out.own_first = first;
    return;
  }
  tell_tokens(buffer, number, channel, me, before[me], within[me]);
}

EPF_DEVICE inline void send_channel(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                    uint64_t number, uint32_t channel, ChannelBatch& out) {
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  const Range range = channel_range(call.count, buffer.shape.channels, channel);
  announce(buffer, call, number, channel, range, out);
  if (me < world) out.ends[me] = 0;
  if (me == 0) {
    out.failed = 0;
    out.own_begin = kept_range(range).end;
  }
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
    if (me < world && me != buffer.rank && buffer.near(me) && out.ends[me] != out.starts[me]) {
      tell_slots(buffer, ChannelSaid::kWritten, number, channel, me, out.ends[me]);
    }
    for_far(buffer, [&](uint32_t to) {
      signal_slots(buffer, ChannelSaid::kWritten, channel, to, {out.starts[to], out.ends[to]});
    });
  }
  count_slots(buffer, ChannelSaid::kFreed, channel, [&](uint32_t to) { return out.ends[to]; });
}

}  // namespace detail
}  // namespace epfabric
