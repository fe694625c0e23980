// The seam between a proxy and what moves its bytes: a compile-time concept, so that the loop is
// monomorphic. loopback_transport.h and remote_transport.h satisfy it; loop.h is written against
// it.
#pragma once

#include <epfabric/command.h>

#include <concepts>
#include <cstdint>

#include "endpoint.h"
#include "record.h"

namespace epfabric::agent {

class Ring;

// The next part of a WRITE; offsets in bytes, already checked to lie in the regions that are named.
struct WritePart {
  Ring* ring;
  uint32_t rank;
  uint8_t source_region;
  uint8_t destination_region;
  uint64_t source;
  uint64_t destination;
  uint64_t bytes;
};

// A signal word's new value.
struct SignalPart {
  Ring* ring;
  uint32_t rank;
  uint32_t index;
  uint64_t value;
};

// An ATOMIC on a word whose region was checked.
struct AtomicPart {
  Ring* ring;
  const Atomic* atomic;
  bool cas;
  uint8_t region;
  uint32_t* sent;  // 0 at first: how much of it is on its way
};

// What became of an ATOMIC: nothing yet (busy, try again), it was applied, or it was sent and its
// ring awaits the answer.
struct Applied {
  enum class How : uint8_t { kBusy, kDone, kSent } how = How::kBusy;
  uint64_t old = 0;  // kDone
};

// What became of a part: `bytes` of it are under way (0 = busy, try again); `pending`: the ring's
// part_done() will be called when its source may be reused; `signalled`: its signal went with it. A
// signal alone counts as one byte.
struct Posted {
  uint64_t bytes = 0;
  bool pending = false;
  bool signalled = false;
};

template <class T>
concept Transport = requires(T transport, const WritePart& write, const SignalPart* then,
                             const SignalPart& signal, const AtomicPart& atomic) {
  // `then`, if any, is the signal of a WRITE of which this is the rest.
  { transport.write(write, then) } -> std::same_as<Posted>;
  { transport.signal(signal) } -> std::same_as<Posted>;
  { transport.atomic(atomic) } -> std::same_as<Applied>;
};

}  // namespace epfabric::agent
