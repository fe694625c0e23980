// Ranks whose memory this GPU does not reach: what goes to them is written into the half of this
// rank's region that goes out, and WRITE commands have the agent bring it to the same place in the
// half of theirs that comes in, the last of them with a signal. All pieces for a rank are pushed to
// one ring, so that who sees the signal has all before it. For kernels, as dispatch.cuh.
#pragma once

#include "device_buffer.cuh"

namespace epfabric {
namespace detail {

EPF_DEVICE inline uint32_t ring_of(const DeviceBuffer& buffer, uint32_t other) {
  return buffer.first_ring + (buffer.rank + other) % (buffer.agent->rings - buffer.first_ring);
}

EPF_DEVICE inline uint32_t signal_of(const DeviceBuffer& buffer, Awaited what) {
  return buffer.first_signal + static_cast<uint32_t>(what) - 1;
}

// Where a proxied rank says for how many calls what is waited for has come.
EPF_DEVICE inline const uint64_t* said_by(const DeviceBuffer& buffer, uint32_t from, Awaited what) {
  return buffer.agent->signal(from, ring_of(buffer, from), signal_of(buffer, what));
}

EPF_DEVICE inline unsigned char* incoming(const DeviceBuffer& buffer, uint64_t offset) {
  return buffer.region + offset;
}

EPF_DEVICE inline unsigned char* outgoing(const DeviceBuffer& buffer, uint64_t offset) {
  return buffer.region + transit_of(buffer.shape).bytes + offset;
}

// By a whole warp: pushes the commands of its lanes; a ring that has no room in time is lost, and
// with it the buffer and its session.
EPF_DEVICE inline bool push_to(const DeviceBuffer& buffer, uint32_t to, const Slot& command,
                               bool wanted, bool packed) {
  const DeviceRing ring = buffer.agent->ring(ring_of(buffer, to));
  bool pushed = platform::ballot(wanted && !packed) == 0;
  if (pushed) {
    const Bounds bounds{buffer.agent->bounds().aborts, buffer.timeout_ns};
    pushed = push_warp(ring, command, wanted, bounds).waited == Waited::kDone;
  }
  if (!pushed && platform::lane() == 0) {
    const uint64_t row = uint64_t{static_cast<uint32_t>(Awaited::kRing)} * buffer.shape.world;
    platform::store_device(buffer.verdicts + row + to, 1);  // stays, whatever fails after it
    fail(buffer, to, Awaited::kRing);
  }
  return pushed;
}

// What is sent at once: `bytes` from `source` on in the half that goes out, to `target` in the half
// that comes in there, in pieces of `piece` bytes, the first one of `first`.
struct Parcel {
  uint64_t source, target, bytes, first, piece;

  EPF_DEVICE uint64_t pieces() const {
    return bytes <= first ? 1 : 1 + (bytes - first + piece - 1) / piece;
  }
  EPF_DEVICE uint64_t begin(uint64_t which) const {
    return which == 0 ? 0 : first + (which - 1) * piece;
  }
  EPF_DEVICE uint64_t end(uint64_t which) const {
    const uint64_t whole = first + which * piece;
    return whole < bytes ? whole : bytes;
  }
};

// By a whole warp, after a barrier with whoever wrote it. Without bytes the signal goes alone.
EPF_DEVICE inline void post(const DeviceBuffer& buffer, uint32_t to, Awaited what,
                            const Parcel& parcel) {
  const uint64_t target = buffer.region_offset + parcel.target;
  const uint64_t source = buffer.region_offset + transit_of(buffer.shape).bytes + parcel.source;
  const uint64_t pieces = parcel.pieces();
  const auto units = [](uint64_t bytes) { return static_cast<uint32_t>(bytes / kUnitBytes); };
  for (uint64_t done = 0; done < pieces; done += platform::kWarpSize) {
    const uint64_t which = done + platform::lane();
    const bool wanted = which < pieces;
    const uint32_t advance = which + 1 == pieces ? 1 : 0;
    const uint32_t signal = advance != 0 ? signal_of(buffer, what) : 0;
    Slot command{};
    bool packed = false;
    if (wanted && parcel.bytes == 0) {
      packed = pack_signal(to, signal, advance, command);
    } else if (wanted) {
      const uint64_t begin = parcel.begin(which);
      packed = pack_write({to, units(source + begin), units(target + begin),
                           units(parcel.end(which) - begin), signal, advance},
                          command);
    }
    if (!push_to(buffer, to, command, wanted, packed)) return;
  }
}

// By a block of whole warps: work(rank) by a warp, for each proxied rank that is not masked. Other
// warps of the block may be masking ranks by now, so a warp goes by one answer of all its lanes.
template <typename Work>
EPF_DEVICE void for_proxied(const DeviceBuffer& buffer, const Here& here, Work work) {
  if (buffer.agent == nullptr) return;
  const uint32_t warps = platform::threads() / platform::kWarpSize;
  for (uint32_t to = platform::thread() / platform::kWarpSize; to < buffer.shape.world;
       to += warps) {
    if (!here.proxied(to)) continue;
    if (platform::ballot(here.masked[to] == 0) != 0) work(to);
  }
}

// By a block: tells of the calls that this rank is done with since it last told.
EPF_DEVICE inline void post_credits(const DeviceBuffer& buffer, const Here& here) {
  const uint64_t tokens = here.calls.dispatch_received - here.told_tokens;
  const uint64_t rows = here.calls.combine_received - here.told_rows;
  for_proxied(buffer, here, [&](uint32_t to) {
    const uint32_t me = platform::lane();
    for (uint32_t kind = 0; kind < 2; ++kind) {
      const Awaited what = kind == 0 ? Awaited::kTokenRoom : Awaited::kRowRoom;
      const auto advance = static_cast<uint32_t>(kind == 0 ? tokens : rows);
      const bool wanted = me == 0 && advance != 0;
      Slot command{};
      const bool packed = wanted && pack_signal(to, signal_of(buffer, what), advance, command);
      if (!push_to(buffer, to, command, wanted, packed)) return;
    }
  });
  if (buffer.agent == nullptr || platform::thread() != 0) return;
  platform::store_device(&buffer.state->told_tokens, here.calls.dispatch_received);
  platform::store_device(&buffer.state->told_rows, here.calls.combine_received);
}

// By a block, once the last message is written: notes, messages, signals.
EPF_DEVICE inline void post_tokens(const DeviceBuffer& buffer, const Here& here,
                                   const uint32_t* messages, bool fp8) {
  const Transit at = transit_of(buffer.shape);
  const uint64_t each = buffer.shape.message_bytes(fp8);
  for_proxied(buffer, here, [&](uint32_t to) {
    post(buffer, to, Awaited::kTokens,
         {at.tokens_at(buffer.shape, here.sent, to),
          at.tokens_at(buffer.shape, here.sent, buffer.rank), at.note_bytes + messages[to] * each,
          at.note_bytes + kPacked * each, kPacked * each});
  });
}

// By a block: the weights of so many messages at most.
EPF_DEVICE inline void post_weights(const DeviceBuffer& buffer, const Here& here,
                                    uint32_t messages) {
  constexpr uint64_t kPiece = 1 << 16;
  const Transit at = transit_of(buffer.shape);
  for_proxied(buffer, here, [&](uint32_t to) {
    post(buffer, to, Awaited::kWeights,
         {at.weights_at(buffer.shape, here.sent, to),
          at.weights_at(buffer.shape, here.sent, buffer.rank),
          weights_bytes(buffer.shape, messages), kPiece, kPiece});
  });
}

// By a block: a row for each message that a rank sent here, in their order; firsts as Arrivals has
// them.
EPF_DEVICE inline void post_rows(const DeviceBuffer& buffer, const Here& here,
                                 const uint32_t* firsts) {
  const Transit at = transit_of(buffer.shape);
  const uint64_t each = buffer.shape.row_bytes();
  for_proxied(buffer, here, [&](uint32_t to) {
    post(buffer, to, Awaited::kRows,
         {at.rows_at(buffer.shape, here.sent, to), at.rows_at(buffer.shape, here.sent, buffer.rank),
          (firsts[to + 1] - firsts[to]) * each, kPacked * each, kPacked * each});
  });
}

EPF_DEVICE inline Note* note_to(const DeviceBuffer& buffer, const Here& here, uint32_t to) {
  const uint64_t at = transit_of(buffer.shape).tokens_at(buffer.shape, here.sent, to);
  return reinterpret_cast<Note*>(outgoing(buffer, at));
}

EPF_DEVICE inline const Note* note_from(const DeviceBuffer& buffer, uint64_t call, uint32_t from) {
  const uint64_t at = transit_of(buffer.shape).tokens_at(buffer.shape, call, from);
  return reinterpret_cast<const Note*>(incoming(buffer, at));
}

}  // namespace detail

// Where things lie that go from rank to rank, whichever way they take.

// The first message to a rank, and from it: at the same place for 8-bit floats as for others, since
// the call before may be of the other kind and not yet read.
EPF_DEVICE inline unsigned char* messages_to(const DeviceBuffer& buffer, const Here& here,
                                             const Window& at, uint32_t to) {
  const Shape& shape = buffer.shape;
  if (here.proxied(to)) {
    return reinterpret_cast<unsigned char*>(detail::note_to(buffer, here, to)) +
           transit_of(shape).note_bytes;
  }
  const uint64_t place = ((here.sent % kParities) * shape.world + buffer.rank) * shape.tokens;
  return here.at<unsigned char>(to, at.messages) + place * shape.message_bytes(false);
}

EPF_DEVICE inline const unsigned char* messages_from(const DeviceBuffer& buffer, const Here& here,
                                                     const Window& at, uint32_t from) {
  const Shape& shape = buffer.shape;
  if (here.proxied(from)) {
    return reinterpret_cast<const unsigned char*>(detail::note_from(buffer, here.received, from)) +
           transit_of(shape).note_bytes;
  }
  const uint64_t place = ((here.received % kParities) * shape.world + from) * shape.tokens;
  return here.at<unsigned char>(buffer.rank, at.messages) + place * shape.message_bytes(false);
}

// Tokens for each expert of a rank, and of a rank for this one's experts.
EPF_DEVICE inline uint32_t* counts_to(const DeviceBuffer& buffer, const Here& here,
                                      const Window& at, uint32_t to) {
  if (here.proxied(to)) return reinterpret_cast<uint32_t*>(detail::note_to(buffer, here, to) + 1);
  const uint64_t place = (here.sent % kParities) * buffer.shape.world + buffer.rank;
  return here.at<uint32_t>(to, at.counts) + place * buffer.shape.local_experts();
}

EPF_DEVICE inline const uint32_t* counts_from(const DeviceBuffer& buffer, const Here& here,
                                              const Window& at, uint32_t from) {
  if (here.proxied(from)) {
    return reinterpret_cast<const uint32_t*>(detail::note_from(buffer, here.received, from) + 1);
  }
  const uint64_t place = (here.received % kParities) * buffer.shape.world + from;
  return here.at<uint32_t>(buffer.rank, at.counts) + place * buffer.shape.local_experts();
}

// The weights of the first message to a rank, and from it.
EPF_DEVICE inline float* weights_to(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                    uint32_t to) {
  const Shape& shape = buffer.shape;
  if (here.proxied(to)) {
    const uint64_t offset = transit_of(shape).weights_at(shape, here.sent, to);
    return reinterpret_cast<float*>(detail::outgoing(buffer, offset));
  }
  const uint64_t place = ((here.sent % kParities) * shape.world + buffer.rank) * shape.tokens;
  return here.at<float>(to, at.weights) + place * shape.topk;
}

EPF_DEVICE inline const float* weights_from(const DeviceBuffer& buffer, const Here& here,
                                            const Window& at, uint32_t from) {
  const Shape& shape = buffer.shape;
  if (here.proxied(from)) {
    const uint64_t offset = transit_of(shape).weights_at(shape, here.sent, from);
    return reinterpret_cast<const float*>(detail::incoming(buffer, offset));
  }
  const uint64_t place = ((here.sent % kParities) * shape.world + from) * shape.tokens;
  return here.at<float>(buffer.rank, at.weights) + place * shape.topk;
}

// Where the row goes with which a rank's message is answered, and where such an answer lies. A rank
// that reaches the other's memory writes by token, so that the rows of a token are neighbours.
EPF_DEVICE inline unsigned char* row_to(const DeviceBuffer& buffer, const Here& here,
                                        const Window& at, uint32_t to, uint64_t message,
                                        uint64_t token, uint64_t copy) {
  const Shape& shape = buffer.shape;
  if (here.proxied(to)) {
    const uint64_t offset = transit_of(shape).rows_at(shape, here.sent, to);
    return detail::outgoing(buffer, offset) + message * shape.row_bytes();
  }
  const uint64_t place = (here.sent % kParities) * shape.tokens + token;
  return here.at<unsigned char>(to, at.rows) + (place * shape.copies() + copy) * shape.row_bytes();
}

EPF_DEVICE inline const unsigned char* row_from(const DeviceBuffer& buffer, const Here& here,
                                                const Window& at, uint32_t from, uint64_t message,
                                                uint64_t token, uint64_t copy) {
  const Shape& shape = buffer.shape;
  if (here.proxied(from)) {
    const uint64_t offset = transit_of(shape).rows_at(shape, here.received, from);
    return detail::incoming(buffer, offset) + message * shape.row_bytes();
  }
  const uint64_t place = (here.received % kParities) * shape.tokens + token;
  return here.at<unsigned char>(buffer.rank, at.rows) +
         (place * shape.copies() + copy) * shape.row_bytes();
}

}  // namespace epfabric
