// The receiving half of a high-throughput dispatch: by a block of each channel, which lays out a
// part of what stays on its rank while others begin, then what comes. Included by
// channel_forward.cuh.
#pragma once

#include "channel_dispatch.cuh"

namespace epfabric {

namespace detail {

// Tokens of a channel that a block which receives lays out.
struct KeptTokens {
  uint32_t tokens[kChannelBatch];
  uint32_t count;
  Range range;   // left to do
  uint64_t row;  // of the next one
};

// By a block.
EPF_DEVICE inline void begin_kept(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                  uint32_t channel, KeptTokens& kept) {
  EPF_SHARED uint32_t before;
  const Range range = channel_range(call.count, buffer.shape.channels, channel);
  if (platform::thread() == 0) before = 0;
  platform::block_barrier();
  count_tokens(call, buffer.shape.world, {0, range.first}, &before,
               [&](const uint8_t* in_rank) { return in_rank[buffer.rank] != 0; });
  platform::block_barrier();
  if (platform::thread() != 0) return;
  kept.range = kept_range(range);
  kept.row = static_cast<uint32_t>(call.firsts[buffer.rank]) + before;
}

// By a block: some of them.
EPF_DEVICE inline void keep(const ChannelBuffer& buffer, const ChannelDispatch& call,
                            KeptTokens& kept) {
  const ChannelShape& shape = buffer.shape;
  const uint32_t me = platform::lane();
  platform::block_barrier();
  if (warp() == 0) {
    constexpr uint32_t kLooks = kChannelBatch / platform::kWarpSize;
    bool stays[kLooks];
#pragma unroll
    for (uint32_t look = 0; look < kLooks; ++look) {
      const uint64_t token = uint64_t{kept.range.first} + look * platform::kWarpSize + me;
      stays[look] = token < kept.range.end && call.in_rank[token * shape.world + buffer.rank] != 0;
    }
    uint32_t count = 0;
#pragma unroll
    for (uint32_t look = 0; look < kLooks; ++look) {
      const uint64_t all = platform::ballot(stays[look]);
      const uint32_t at = count + platform::count_bits(all & ((uint64_t{1} << me) - 1));
      if (stays[look]) kept.tokens[at] = kept.range.first + look * platform::kWarpSize + me;
      count += platform::count_bits(all);
    }
    if (me == 0) kept.count = count;
  }
  platform::block_barrier();
  share_rows(kept.count, [&](const Share& share) {
    const uint64_t token = kept.tokens[share.row];
    const uint64_t row = kept.row + share.row;
    if (row >= call.rows) return;
    unsigned char* const target = call.received + row * shape.row_bytes;
    copy_row<true>(call.tokens + token * shape.row_bytes, &target, 1, shape.row_bytes / 16, share);
    if (share.part != 0) return;
    ChannelChoice choice;
    if (me < shape.topk) {
      const int64_t named = call.topk[token * shape.topk + me];
      const int64_t expert = named - int64_t{buffer.rank} * call.local_experts;
      if (named >= 0 && expert >= 0 && expert < call.local_experts) {
        choice.expert = expert;
        if (call.weights != nullptr) choice.weight = call.weights[token * shape.topk + me];
      }
    }
    put_header(shape, call, row, static_cast<uint32_t>(token), choice,
               call.scales + token * shape.scales);
  });
  platform::block_barrier();
  if (platform::thread() != 0) return;
  kept.row += kept.count;
  const uint32_t next = kept.range.first + kChannelBatch;
  kept.range.first = next < kept.range.end ? next : kept.range.end;
}

struct ChannelSources {
  uint32_t rows[kChannelRanks];    // of the channel's first token
  uint32_t totals[kChannelRanks];  // tokens of the channel
  uint32_t taken[kChannelRanks];
  uint32_t ends[kChannelRanks];        // of what is taken, with that
  uint32_t starts[kChannelRanks + 1];  // of what is taken now, counted over all sources
  uint32_t failed;
};

// By one thread a source: what will come.
EPF_DEVICE inline void learn(const ChannelBuffer& buffer, const ChannelDispatch& call,
                             uint64_t number, uint32_t channel, ChannelSources& in) {
  const uint32_t from = platform::thread();
  if (from >= buffer.shape.world) return;
  in.totals[from] = in.ends[from] = 0;
  if (from == buffer.rank) return;  // both blocks lay these out
  const ChannelWindow at{};
  const uint64_t* words[] = {buffer.word(buffer.rank, at.firsts, channel, from),
                             buffer.word(buffer.rank, at.totals, channel, from)};
  const auto base = static_cast<uint32_t>(call.firsts[from]);
  Patience patience;
  bool known = false;
  uint32_t first = 0;
  uint32_t total = 0;
  for (bool waits = true; waits && !known;) {
    const uint64_t values[] = {platform::load_relaxed(words[0]), platform::load_relaxed(words[1])};
    first = static_cast<uint32_t>(values[0]);
    total = static_cast<uint32_t>(values[1]);
    known = values[0] >> 32 == say(number, 0) >> 32 && values[1] >> 32 == say(number, 0) >> 32;
    if (!known) waits = patience.pause(buffer, ChannelAwaited::kTokens, from);
  }
  if (!known) in.failed = 1;
  in.rows[from] = base + first;
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
    const uint32_t taken = in.taken[from] = in.ends[from];
    const uint32_t written = taken == in.totals[from]
                                 ? taken
                                 : slots_said(buffer, ChannelSaid::kWritten, number, channel, from);
    in.starts[from + 1] = written - taken;
  }
  platform::block_barrier();
  if (from == 0) {
    in.starts[0] = 0;
    for (uint32_t i = 0; i < world; ++i) {
      const uint32_t room = kChannelBatch - in.starts[i];
      const uint32_t now = in.starts[i + 1] < room ? in.starts[i + 1] : room;
      in.starts[i + 1] = in.starts[i] + now;
      in.ends[i] = in.taken[i] + now;
    }
  }
  platform::block_barrier();
}

// By a block: what rows name that nobody sends.
EPF_DEVICE inline void fill_rest(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                 uint32_t channel) {
  const ChannelShape& shape = buffer.shape;
  if (call.fills == 0 || shape.topk == 0) return;
  const uint64_t end = uint64_t{call.rows} * shape.topk;
  const uint64_t first = static_cast<uint64_t>(call.firsts[shape.world]) * shape.topk;
  const uint32_t step = shape.channels * platform::threads();
  const uint32_t me = channel * platform::threads() + platform::thread();
  for (uint64_t i = first + me; i < end; i += step) call.received_topk[i] = -1;
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
  const unsigned char* slot = slot_from(buffer, channel, from, position);
  const uint32_t token = reinterpret_cast<const ChannelHeader*>(slot)->token;
  ChannelChoice choice;
  if (me < shape.topk) {
    choice.expert = reinterpret_cast<const int32_t*>(slot + sizeof(ChannelHeader))[me];
    choice.weight = reinterpret_cast<const float*>(slot + shape.weights_offset())[me];
  }
  unsigned char* const target = call.received + row * shape.row_bytes;
  copy_row<true>(slot + shape.row_offset(), &target, 1, shape.row_bytes / 16, share);
  if (share.part != 0) return;
  put_header(shape, call, row, token, choice,
             reinterpret_cast<const float*>(slot + shape.scales_offset()));
}

EPF_DEVICE inline void receive_channel(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                       uint64_t number, uint32_t channel) {
  EPF_SHARED ChannelSources in;
  EPF_SHARED KeptTokens kept;
  const uint32_t me = platform::thread();
  const uint32_t world = buffer.shape.world;
  if (me == 0) in.failed = 0;
  begin_kept(buffer, call, channel, kept);
  keep(buffer, call, kept);  // meanwhile others begin
  learn(buffer, call, number, channel, in);
  platform::block_barrier();
  uint32_t left = 0;
  uint32_t slow = 0;
  for (uint32_t from = world; from-- > 0;) left += in.totals[from];
  Patience patience;
  fill_rest(buffer, call, channel);
  while ((left != 0 || kept.range.first != kept.range.end) && in.failed == 0) {
    take(buffer, number, channel, in);
    const uint32_t n = in.starts[world];
    if (n == 0) {
      if (kept.range.first != kept.range.end) {
        keep(buffer, call, kept);
      } else if (me == 0) {
        while (in.taken[slow] == in.totals[slow]) ++slow;
        if (!patience.pause(buffer, ChannelAwaited::kTokens, slow)) in.failed = 1;
      }
      platform::block_barrier();
      continue;
    }
    patience = {};
    share_rows(n, [&](const Share& share) { lay_out(buffer, call, channel, in, share); });
    platform::block_barrier();
    if (me < world && in.ends[me] != in.taken[me]) {
      tell_slots(buffer, ChannelSaid::kFreed, number, channel, me, in.ends[me]);
    }
    left -= n;
    platform::block_barrier();
  }
}

}  // namespace detail
}  // namespace epfabric
