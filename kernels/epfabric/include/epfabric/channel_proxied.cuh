// Where the slots of channels lie, and how ranks tell each other of them. Among the ranks of a
// node: by words in each other's windows. Between nodes: from each rank to the one with its place
// on the other node, by WRITE commands and signals, with what lies in the ranks' regions
// (channels.h). What a rank's kernels exchange with one of another node passes that node's, and
// this one's: a stream of its own in the windows, numbered by that rank. For kernels.
#pragma once

#include "channel_buffer.cuh"

namespace epfabric {
namespace detail {

EPF_DEVICE inline uint32_t ring_of(const ChannelBuffer& buffer, uint32_t channel) {
  return buffer.first_ring + channel;
}
// Of the notes between this rank and another.
EPF_DEVICE inline uint32_t ring_between(const ChannelBuffer& buffer, uint32_t other) {
  return buffer.first_ring + (buffer.rank + other) % (buffer.agent->rings - buffer.first_ring);
}

EPF_DEVICE inline uint32_t signal_of(const ChannelBuffer& buffer, ChannelSaid what) {
  return buffer.first_signal + static_cast<uint32_t>(what);
}

EPF_DEVICE inline const uint64_t* met_by(const ChannelBuffer& buffer, uint32_t from) {
  return buffer.agent->signal(from, ring_between(buffer, from),
                              signal_of(buffer, ChannelSaid::kMet));
}

// What a proxied rank had said when the running call began. Of kWritten it is the receiving
// block's, of kFreed the sending one's.
EPF_DEVICE inline uint64_t& tally(const ChannelBuffer& buffer, ChannelSaid what, uint32_t channel,
                                  uint32_t other) {
  const uint64_t row = uint64_t{static_cast<uint32_t>(what)} * kChannels + channel;
  return buffer.tallies[row * kChannelRanks + other];
}

// Of the streams between nodes.
EPF_DEVICE inline unsigned char* slot_out(const ChannelBuffer& buffer, uint32_t channel,
                                          uint32_t to, uint32_t index) {
  const ChannelShape& shape = buffer.shape;
  return buffer.region + channel_transit(shape).rings.out + shape.slot_place(channel, to, index);
}
EPF_DEVICE inline const unsigned char* slot_in(const ChannelBuffer& buffer, uint32_t channel,
                                               uint32_t from, uint32_t index) {
  const ChannelShape& shape = buffer.shape;
  return buffer.region + channel_transit(shape).rings.in + shape.slot_place(channel, from, index);
}

// Of the streams in windows.
EPF_DEVICE inline unsigned char* slot_to(const ChannelBuffer& buffer, uint32_t channel, uint32_t to,
                                         uint32_t index) {
  return buffer.at<unsigned char>(buffer.by(to), ChannelWindow{}.rings) +
         buffer.shape.slot_place(channel, buffer.stream(to), index);
}
EPF_DEVICE inline const unsigned char* slot_from(const ChannelBuffer& buffer, uint32_t channel,
                                                 uint32_t from, uint32_t index) {
  return buffer.at<unsigned char>(buffer.rank, ChannelWindow{}.rings) +
         buffer.shape.slot_place(channel, from, index);
}

struct ChannelHeader {
  uint32_t token, reserved;
  uint64_t ranks;  // of the node, bit by bit, that the token goes to; between nodes
};

// What stands before a token's bytes: lane k has the k-th choice.
struct ChannelChoice {
  int64_t expert = -1;
  float weight = 0;
};

// By a warp: what stands before a token's bytes in a slot.
EPF_DEVICE inline void put_slot(const ChannelShape& shape, unsigned char* slot, uint32_t token,
                                const ChannelChoice& choice, const float* scales) {
  const uint32_t me = platform::lane();
  if (me == 0) reinterpret_cast<ChannelHeader*>(slot)->token = token;
  if (me < shape.topk) {
    reinterpret_cast<int32_t*>(slot + sizeof(ChannelHeader))[me] =
        static_cast<int32_t>(choice.expert);
    reinterpret_cast<float*>(slot + shape.weights_offset())[me] = choice.weight;
  }
  for (uint32_t i = me; i < shape.scales; i += platform::kWarpSize) {
    reinterpret_cast<float*>(slot + shape.scales_offset())[i] = scales[i];
  }
}

EPF_DEVICE inline ChannelNote* note_to(const ChannelBuffer& buffer, uint32_t to) {
  const uint64_t at = channel_transit(buffer.shape).notes.out + to * kChannelNoteBytes;
  return reinterpret_cast<ChannelNote*>(buffer.region + at);
}
EPF_DEVICE inline const ChannelNote* note_from(const ChannelBuffer& buffer, uint32_t from) {
  const uint64_t at = channel_transit(buffer.shape).notes.in + from * kChannelNoteBytes;
  return reinterpret_cast<const ChannelNote*>(buffer.region + at);
}

// Tokens for each expert of a rank, and of a rank for this one's experts.
EPF_DEVICE inline uint32_t* counts_to(const ChannelBuffer& buffer, uint32_t to) {
  if (buffer.proxied(to)) return reinterpret_cast<uint32_t*>(note_to(buffer, to) + 1);
  return buffer.at<uint32_t>(to, ChannelWindow{}.counts) + uint64_t{buffer.rank} * kChannelExperts;
}
EPF_DEVICE inline const uint32_t* counts_from(const ChannelBuffer& buffer, uint32_t from) {
  if (buffer.proxied(from)) {
    return reinterpret_cast<const uint32_t*>(note_from(buffer, from) + 1);
  }
  return buffer.at<uint32_t>(buffer.rank, ChannelWindow{}.counts) +
         uint64_t{from} * kChannelExperts;
}

// `bytes` from an offset in the region on, to another of that of `to`; without bytes the signal
// goes alone.
struct ChannelParcel {
  uint64_t source, target, bytes;
  uint32_t advance;
};

// By a whole warp, after a barrier with whoever wrote them: the parcels of lanes that have one. A
// ring that has no room in time is lost, and with it the buffer and its session.
EPF_DEVICE inline void post(const ChannelBuffer& buffer, uint32_t ring, uint32_t to,
                            ChannelSaid what, bool wanted, const ChannelParcel& parcel) {
  const uint32_t signal = signal_of(buffer, what);
  const auto units = [&](uint64_t offset) {
    return static_cast<uint32_t>((buffer.region_offset + offset) / kUnitBytes);
  };
  Slot command{};
  bool packed = false;
  if (wanted && parcel.bytes == 0) {
    packed = pack_signal(to, signal, parcel.advance, command);
  } else if (wanted) {
    packed = pack_write({to, units(parcel.source), units(parcel.target),
                         static_cast<uint32_t>(parcel.bytes / kUnitBytes), signal, parcel.advance},
                        command);
  }
  bool pushed = platform::ballot(wanted && !packed) == 0;
  if (pushed) {
    const Bounds bounds{buffer.agent->bounds().aborts, buffer.timeout_ns};
    pushed = push_warp(buffer.agent->ring(ring), command, wanted, bounds).waited == Waited::kDone;
  }
  if (!pushed && platform::lane() == 0) {
    platform::store_device(&buffer.state->lost_ring, 1);
    fail(buffer, ChannelAwaited::kRing, to);
  }
}

// By a block of whole warps: work(rank) by a warp, for each proxied rank.
template <typename Work>
EPF_DEVICE void for_proxied(const ChannelBuffer& buffer, Work work) {
  if (!kChannelsProxied || buffer.agent == nullptr) return;
  for (uint32_t to = warp(); to < buffer.shape.world; to += warps()) {
    if (buffer.proxied(to)) work(to);
  }
}

// By a block, when its counts are written: says that this rank has begun a call, and what it sends,
// if it does.
EPF_DEVICE inline void post_notes(const ChannelBuffer& buffer, const int32_t* rank_tokens,
                                  uint32_t local_experts) {
  const ChannelPart at = channel_transit(buffer.shape).notes;
  for_proxied(buffer, [&](uint32_t to) {
    ChannelParcel parcel{at.out + to * kChannelNoteBytes, at.in + buffer.rank * kChannelNoteBytes,
                         0, 1};
    if (rank_tokens != nullptr) {
      if (platform::lane() == 0) {
        note_to(buffer, to)->tokens = static_cast<uint32_t>(rank_tokens[to]);
      }
      parcel.bytes = sizeof(ChannelNote) + (uint64_t{local_experts} * 4 + 15) / 16 * 16;
    }
    post(buffer, ring_between(buffer, to), to, ChannelSaid::kMet, platform::lane() == 0, parcel);
  });
}

// By a block of whole warps: work(rank) by a warp, for the rank of each other node that has this
// one's place.
template <typename Work>
EPF_DEVICE void for_far(const ChannelBuffer& buffer, Work work) {
  for (uint32_t node = warp(); node < buffer.nodes(); node += warps()) {
    if (node != buffer.node_of(buffer.rank)) work(buffer.rail(node));
  }
}

EPF_DEVICE inline uint64_t record_place(const ChannelBuffer& buffer, uint32_t channel,
                                        uint32_t other) {
  return (uint64_t{channel} * buffer.shape.world + other) * sizeof(ChannelRecord);
}

// By a warp: what the channel will bring to the node of a far rank; before, within: tokens by rank.
EPF_DEVICE inline void post_record(const ChannelBuffer& buffer, uint32_t channel, uint32_t to,
                                   uint32_t total, const uint32_t* before, const uint32_t* within) {
  const ChannelPart at = channel_transit(buffer.shape).records;
  const ChannelParcel parcel{at.out + record_place(buffer, channel, to),
                             at.in + record_place(buffer, channel, buffer.rank),
                             sizeof(ChannelRecord), 1};
  auto* record = reinterpret_cast<ChannelRecord*>(buffer.region + parcel.source);
  const uint32_t first = buffer.node_of(to) * buffer.node_ranks;
  for (uint32_t i = platform::lane(); i < buffer.node_ranks; i += platform::kWarpSize) {
    record->ranks[i] = {before[first + i], within[first + i]};
  }
  if (platform::lane() == 0) record->total = total;
  platform::warp_barrier();
  post(buffer, ring_of(buffer, channel), to, ChannelSaid::kWritten, platform::lane() == 0, parcel);
}

// By one thread: waits for the record of a far rank; nothing when that failed. What comes next is
// counted from there.
EPF_DEVICE inline const ChannelRecord* await_record(const ChannelBuffer& buffer, uint32_t channel,
                                                    uint32_t from) {
  uint64_t& before = tally(buffer, ChannelSaid::kWritten, channel, from);
  const uint64_t* word = buffer.agent->signal(from, ring_of(buffer, channel),
                                              signal_of(buffer, ChannelSaid::kWritten));
  if (!await_signal(buffer, word, before + 1, ChannelAwaited::kTokens, from)) return nullptr;
  ++before;
  const uint64_t at =
      channel_transit(buffer.shape).records.in + record_place(buffer, channel, from);
  return reinterpret_cast<const ChannelRecord*>(buffer.region + at);
}

// By a warp: slots for a far rank, in one piece, or two where the ring ends between them.
EPF_DEVICE inline void post_slots(const ChannelBuffer& buffer, uint32_t channel, uint32_t to,
                                  const Range& slots) {
  const ChannelShape& shape = buffer.shape;
  const ChannelPart at = channel_transit(shape).rings;
  const uint32_t me = platform::lane();
  const uint32_t turn = slots.first - slots.first % shape.slots + shape.slots;
  const uint32_t middle = slots.end < turn ? slots.end : turn;
  const Range mine = me == 0 ? Range{slots.first, middle} : Range{middle, slots.end};
  const uint32_t count = mine.end - mine.first;
  post(buffer, ring_of(buffer, channel), to, ChannelSaid::kWritten, me < 2 && count != 0,
       {at.out + shape.slot_place(channel, to, mine.first),
        at.in + shape.slot_place(channel, buffer.rank, mine.first), count * shape.slot_bytes(),
        count});
}

EPF_DEVICE inline uint64_t table_of(ChannelSaid what) {
  return what == ChannelSaid::kWritten ? ChannelWindow{}.tails : ChannelWindow{}.heads;
}

// By one thread: how many slots of the running call a far rank has written for this one, or freed
// of this one's; acquires.
EPF_DEVICE inline uint32_t slots_signalled(const ChannelBuffer& buffer, ChannelSaid what,
                                           uint32_t channel, uint32_t other) {
  const uint64_t now = platform::load_acquire(
      buffer.agent->signal(other, ring_of(buffer, channel), signal_of(buffer, what)));
  const uint64_t before = tally(buffer, what, channel, other);
  return now > before ? static_cast<uint32_t>(now - before) : 0;
}

// The same of a stream in the windows.
EPF_DEVICE inline uint32_t slots_said(const ChannelBuffer& buffer, ChannelSaid what,
                                      uint64_t number, uint32_t channel, uint32_t other) {
  uint32_t count = 0;
  const uint64_t* word = buffer.word(buffer.rank, table_of(what), channel, other);
  return said(word, number, count) ? count : 0;
}

// By one thread: how many tokens a stream brings to a rank of this node, and after how many.
EPF_DEVICE inline void tell_tokens(const ChannelBuffer& buffer, uint64_t number, uint32_t channel,
                                   uint32_t to, uint32_t first, uint32_t total) {
  const ChannelWindow at{};
  const uint32_t owner = buffer.by(to);
  const uint32_t stream = buffer.stream(to);
  // Partner: learn(). The words say all there is.
  platform::store_relaxed(buffer.word(owner, at.firsts, channel, stream), say(number, first));
  platform::store_relaxed(buffer.word(owner, at.totals, channel, stream), say(number, total));
}

// By one thread, after a barrier with whoever wrote or read them.
EPF_DEVICE inline void tell_slots(const ChannelBuffer& buffer, ChannelSaid what, uint64_t number,
                                  uint32_t channel, uint32_t other, uint32_t end) {
  // Partner: slots_said().
  platform::store_release(
      buffer.word(buffer.by(other), table_of(what), channel, buffer.stream(other)),
      say(number, end));
}

// By a warp, after such a barrier: the same for a far rank.
EPF_DEVICE inline void signal_slots(const ChannelBuffer& buffer, ChannelSaid what, uint32_t channel,
                                    uint32_t to, const Range& slots) {
  if (slots.end == slots.first) return;
  if (what == ChannelSaid::kWritten) {
    post_slots(buffer, channel, to, slots);
  } else {
    post(buffer, ring_of(buffer, channel), to, what, platform::lane() == 0,
         {0, 0, 0, slots.end - slots.first});
  }
}

// By a block, at a call's end: all of a far rank's slots(rank) have been told of.
template <typename Slots>
EPF_DEVICE void count_slots(const ChannelBuffer& buffer, ChannelSaid what, uint32_t channel,
                            Slots slots) {
  const uint32_t me = platform::thread();
  if (me < buffer.shape.world && buffer.far(me)) tally(buffer, what, channel, me) += slots(me);
}

}  // namespace detail
}  // namespace epfabric
