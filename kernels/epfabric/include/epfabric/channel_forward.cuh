// What passes a rank on its way between nodes in high-throughput calls, and the blocks of a call.
// For each channel and other node a block of its own forwards, so that none waits for another's
// way: in a dispatch the tokens of that node's rank with the same place go on to this node's ranks,
// in a combine these ranks' rows of a token become one that goes back. For kernels, as
// channel_dispatch.cuh.
#pragma once

#include "channel_combine.cuh"
#include "channel_receive.cuh"

namespace epfabric {
namespace detail {

struct Forwarded {
  uint32_t total, end;  // tokens of the channel; those that have come
  uint32_t failed;
};

// By a block: waits for what comes, and tells this node's ranks.
EPF_DEVICE inline void learn_forwarded(const ChannelBuffer& buffer, uint64_t number,
                                       uint32_t channel, uint32_t from, Forwarded& all) {
  EPF_SHARED const ChannelRecord* record;
  const uint32_t me = platform::thread();
  if (me == 0) record = await_record(buffer, channel, from);
  platform::block_barrier();
  if (me == 0) {
    all.failed = record == nullptr ? 1 : 0;
    all.total = record == nullptr ? 0 : static_cast<uint32_t>(record->total);
    all.end = 0;
  }
  if (record != nullptr && me < buffer.node_ranks) {
    const auto& counts = record->ranks[me];
    tell_tokens(buffer, number, channel, from - from % buffer.node_ranks + me, counts.first,
                counts.total);
  }
  platform::block_barrier();
}

// By a block: which of the tokens [first, all.end) go to which rank of this node, and when there is
// room for them.
EPF_DEVICE inline void place_forwarded(const ChannelBuffer& buffer, uint64_t number,
                                       uint32_t channel, uint32_t from, const Range& batch,
                                       ChannelBatch& out) {
  const uint32_t ranks = buffer.node_ranks;
  const uint32_t tokens = batch.end - batch.first;
  for (uint32_t to = warp(); to < ranks; to += warps()) {
    const Range slots = count_batch(tokens, to, out, [&](uint32_t i) {
      const unsigned char* slot = slot_in(buffer, channel, from, batch.first + i);
      return (reinterpret_cast<const ChannelHeader*>(slot)->ranks >> to & 1) != 0;
    });
    if (platform::lane() != 0) continue;
    const uint32_t other = from - from % ranks + to;
    await_room(buffer, slots, buffer.by(other), out,
               [&] { return slots_said(buffer, ChannelSaid::kFreed, number, channel, other); });
  }
  platform::block_barrier();
}

// By a warp: its share of a token, to all ranks of this node that it goes to.
EPF_DEVICE inline void forward_token(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                     uint32_t channel, uint32_t from, uint32_t first,
                                     const Share& share, ChannelBatch& out) {
  const ChannelShape& shape = buffer.shape;
  const unsigned char* slot = slot_in(buffer, channel, from, first + share.row);
  const auto& places = out.places[share.row];
  auto& targets = out.targets[warp()];
  const uint32_t ranks = buffer.node_ranks;
  const uint32_t me = platform::lane();
  for (uint32_t to = me; to < ranks; to += platform::kWarpSize) {
    const uint32_t other = from - from % ranks + to;
    targets[to] = places[to] < 0
                      ? nullptr
                      : slot_to(buffer, channel, other, static_cast<uint32_t>(places[to])) +
                            shape.row_offset();
  }
  platform::warp_barrier();
  copy_row(slot + shape.row_offset(), targets, ranks, shape.row_bytes / 16, share);
  const uint32_t token = reinterpret_cast<const ChannelHeader*>(slot)->token;
  int64_t named = -1;
  float weight = 0;
  if (me < shape.topk) {
    named = reinterpret_cast<const int32_t*>(slot + sizeof(ChannelHeader))[me];
    weight = reinterpret_cast<const float*>(slot + shape.weights_offset())[me];
  }
  for (uint32_t to = 0; to < ranks; ++to) {
    if (share.part != 0 || targets[to] == nullptr) continue;
    const int64_t expert = named - int64_t{to} * call.local_experts;
    const bool there = named >= 0 && expert >= 0 && expert < call.local_experts;
    put_slot(shape, targets[to] - shape.row_offset(), token,
             {there ? expert : -1, there ? weight : 0.0f},
             reinterpret_cast<const float*>(slot + shape.scales_offset()));
  }
  platform::warp_barrier();  // before the next token's targets
}

EPF_DEVICE inline void forward_channel(const ChannelBuffer& buffer, const ChannelDispatch& call,
                                       uint64_t number, uint32_t channel, uint32_t from,
                                       ChannelBatch& out) {
  EPF_SHARED Forwarded all;
  const uint32_t me = platform::thread();
  const uint32_t ranks = buffer.node_ranks;
  if (me < ranks) out.ends[me] = 0;
  if (me == 0) out.failed = 0;
  learn_forwarded(buffer, number, channel, from, all);
  const uint32_t step = kChannelBatch < buffer.shape.slots ? kChannelBatch : buffer.shape.slots;
  Range batch{0, 0};
  while (batch.first < all.total) {
    if (me == 0) {
      Patience patience;
      uint32_t end = batch.first;
      while (end == batch.first && all.failed == 0) {
        end = slots_signalled(buffer, ChannelSaid::kWritten, channel, from);
        if (end == batch.first && !patience.pause(buffer, ChannelAwaited::kTokens, from)) {
          all.failed = 1;
        }
      }
      all.end = end < batch.first + step ? end : batch.first + step;
    }
    platform::block_barrier();
    if (all.failed != 0) return;
    batch.end = all.end;
    place_forwarded(buffer, number, channel, from, batch, out);
    if (out.failed != 0) return;
    share_rows(batch.end - batch.first, [&](const Share& share) {
      forward_token(buffer, call, channel, from, batch.first, share, out);
    });
    platform::block_barrier();
    if (me < ranks && out.ends[me] != out.starts[me]) {
      tell_slots(buffer, ChannelSaid::kWritten, number, channel, from - from % ranks + me,
                 out.ends[me]);
    }
    if (warp() == 0) signal_slots(buffer, ChannelSaid::kFreed, channel, from, batch);
    batch.first = batch.end;
    platform::block_barrier();
  }
  if (me == 0) tally(buffer, ChannelSaid::kWritten, channel, from) += all.total;
}

struct ReturnRows {
  uint32_t totals[kChannelRanks];   // by this node's ranks: rows of the channel
  uint32_t written[kChannelRanks];  // that have come
  uint32_t count;                   // of a batch: rows that go on
  uint32_t waits;                   // 1 + the rank of this node whose row has to come; 0: none
  uint32_t failed;
};

// By one thread: the next rows that can go on, `room` at most, in the order of their tokens: which
// of the ranks' rows each is the sum of.
EPF_DEVICE inline void merge_rows(const ChannelBuffer& buffer, uint32_t channel, uint32_t first,
                                  uint32_t room, ReturnRows& all, SumBatch& in) {
  const uint32_t ranks = buffer.node_ranks;
  const auto token_of = [&](uint32_t from) {
    const unsigned char* slot = slot_from(buffer, channel, first + from, in.ends[from]);
    return reinterpret_cast<const ChannelHeader*>(slot)->token;
  };
  all.count = all.waits = 0;
  for (uint32_t from = 0; from < ranks; ++from) in.starts[from] = in.ends[from];
  while (all.count < room) {
    uint32_t least = ~0u;
    for (uint32_t from = 0; from < ranks; ++from) {
      if (in.ends[from] == all.totals[from]) continue;
      if (in.ends[from] == all.written[from]) {
        all.waits = from + 1;
        return;
      }
      const uint32_t token = token_of(from);
      least = token < least ? token : least;
    }
    if (least == ~0u) return;
    for (uint32_t from = 0; from < ranks; ++from) {
      const bool has = in.ends[from] != all.totals[from] && token_of(from) == least;
      in.places[all.count][from] = has ? static_cast<int32_t>(in.ends[from]) : -1;
      if (has) ++in.ends[from];
    }
    ++all.count;
  }
}

// By a warp: its share of a row of a batch, and of its weights.
EPF_DEVICE inline void forward_row(const ChannelBuffer& buffer, uint32_t channel, uint32_t first,
                                   uint32_t to, uint32_t position, const Share& share,
                                   SumBatch& in) {
  const ChannelShape& shape = buffer.shape;
  const auto& places = in.places[share.row];
  auto& rows = in.rows[warp()];
  const uint32_t me = platform::lane();
  uint32_t count = 0;
  for (uint32_t from = 0; from < buffer.node_ranks; ++from) {
    if (places[from] < 0) continue;
    if (me == 0) {
      rows[count] = slot_from(buffer, channel, first + from, static_cast<uint32_t>(places[from])) +
                    shape.row_offset();
    }
    ++count;
  }
  platform::warp_barrier();
  unsigned char* slot = slot_out(buffer, channel, to, position);
  sum_rows(rows, count, shape.row_bytes / 16, share, slot + shape.row_offset());
  if (share.part == 0 && me < shape.topk) {
    float sum = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const unsigned char* weights = rows[i] - shape.row_offset() + shape.weights_offset();
      sum += reinterpret_cast<const float*>(weights)[me];
    }
    reinterpret_cast<float*>(slot + shape.weights_offset())[me] = sum;
  }
  platform::warp_barrier();  // before the next row
}

EPF_DEVICE inline void forward_rows(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                                    uint32_t to, SumBatch& in) {
  EPF_SHARED ReturnRows all;
  const uint32_t me = platform::thread();
  const uint32_t ranks = buffer.node_ranks;
  const uint32_t first = to - to % ranks;  // of the streams
  const uint32_t slots = buffer.shape.slots;
  const uint32_t step = kChannelBatch < slots ? kChannelBatch : slots;
  if (me == 0) all.failed = 0;
  platform::block_barrier();
  if (me < ranks) {
    const uint64_t* word = buffer.word(buffer.rank, ChannelWindow{}.totals, channel, first + me);
    in.ends[me] = 0;
    if (!await_said(buffer, word, number, ChannelAwaited::kRows, buffer.by(first + me),
                    all.totals[me])) {
      all.failed = 1;
    }
  }
  Patience patience;
  for (uint32_t sent = 0;;) {
    platform::block_barrier();
    if (all.failed != 0) return;
    if (me < ranks) {
      all.written[me] = slots_said(buffer, ChannelSaid::kWritten, number, channel, first + me);
    }
    platform::block_barrier();
    if (me == 0) {
      const uint32_t room =
          slots - (sent - slots_signalled(buffer, ChannelSaid::kFreed, channel, to));
      merge_rows(buffer, channel, first, room < step ? room : step, all, in);
      const bool full = room == 0;
      if (all.count == 0 && (full || all.waits != 0)) {
        const uint32_t from = full ? to : buffer.by(first + all.waits - 1);
        if (!patience.pause(buffer, full ? ChannelAwaited::kSlots : ChannelAwaited::kRows, from)) {
          all.failed = 1;
        }
        all.waits = 1;
      }
    }
    platform::block_barrier();
    if (all.count == 0) {
      if (all.waits != 0) continue;
      if (me == 0) tally(buffer, ChannelSaid::kFreed, channel, to) += sent;
      return;
    }
    patience = {};
    share_rows(all.count, [&](const Share& share) {
      forward_row(buffer, channel, first, to, sent + share.row, share, in);
    });
    platform::block_barrier();
    if (me < ranks && in.ends[me] != in.starts[me]) {
      tell_slots(buffer, ChannelSaid::kFreed, number, channel, first + me, in.ends[me]);
    }
    if (warp() == 0) {
      signal_slots(buffer, ChannelSaid::kWritten, channel, to, {sent, sent + all.count});
    }
    sent += all.count;
  }
}

// A block's part in a call: for each channel one that sends, one that receives, and one for each
// other node.
struct ChannelPlace {
  uint32_t channel, part, far;

  EPF_DEVICE explicit ChannelPlace(const ChannelBuffer& buffer) {
    const uint32_t parts = buffer.nodes() + 1;
    channel = platform::block() / parts;
    part = platform::block() % parts;
    far = 0;
    if (part < 2) return;
    const uint32_t node = part - 2;
    far = buffer.rail(node < buffer.node_of(buffer.rank) ? node : node + 1);
  }
};

}  // namespace detail

EPF_DEVICE inline void channel_dispatch(const ChannelBuffer& buffer, const ChannelDispatch& call) {
  EPF_SHARED detail::ChannelBatch batch;
  uint64_t number = 0;
  if (!detail::begins(buffer, number)) return;
  const detail::ChannelPlace here(buffer);
  if (here.part == 0) {
    detail::send_channel(buffer, call, number, here.channel, batch);
  } else if (here.part == 1) {
    detail::receive_channel(buffer, call, number, here.channel);
  } else if constexpr (kChannelsProxied) {
    detail::forward_channel(buffer, call, number, here.channel, here.far, batch);
  }
}

EPF_DEVICE inline void channel_combine(const ChannelBuffer& buffer, const ChannelCombine& call) {
  EPF_SHARED detail::SumBatch batch;
  uint64_t number = 0;
  if (!detail::begins(buffer, number)) return;
  const detail::ChannelPlace here(buffer);
  if (here.part == 0) {
    detail::return_channel(buffer, call, number, here.channel);
  } else if (here.part == 1) {
    detail::sum_channel(buffer, call, number, here.channel, batch);
  } else if constexpr (kChannelsProxied) {
    detail::forward_rows(buffer, number, here.channel, here.far, batch);
  }
}

}  // namespace epfabric
