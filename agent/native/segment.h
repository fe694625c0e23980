// The two memfds of a session: the one that its pod writes (slots, abort word) and the one that
// only the agent writes (counters, signal words, abort word, heartbeat). Made by Session, used by
// its proxies.
#pragma once

#include <epfabric/fifo.h>
#include <epfabric/layout.h>

#include "memory.h"

namespace epfabric::agent {

struct Shape {
  uint32_t rank;
  uint32_t world;
  uint32_t rings;
  uint32_t depth;
  uint32_t signals;
};

struct Shared {
  FileDescriptor pod;
  FileDescriptor agent;
};

class Segments {
 public:
  explicit Segments(const Shape& shape);
  void close();

  // Duplicates, for the pod. Throws NativeError.
  Shared share() const { return {pod_fd_.duplicate(), agent_fd_.duplicate()}; }

  const Slot* slots(uint32_t ring) const {
    return reinterpret_cast<const Slot*>(pod_.data() + layout_.slots) +
           uint64_t{ring} * shape_.depth;
  }
  RingCounters* counters(uint32_t ring) const {
    return reinterpret_cast<RingCounters*>(agent_.data() + layout_.counters) + ring;
  }
  AtomicResult* results(uint32_t ring) const {
    return reinterpret_cast<AtomicResult*>(agent_.data() + layout_.results) +
           uint64_t{ring} * shape_.depth;
  }
  // The signal word that (source rank, ring) writes here. The caller has checked the indices.
  uint64_t* signal(uint32_t source, uint32_t ring, uint32_t index) const {
    const uint64_t word = (uint64_t{source} * shape_.rings + ring) * shape_.signals + index;
    return reinterpret_cast<uint64_t*>(agent_.data() + layout_.signals) + word;
  }
  // The word of the mask area that holds the rank's bit.
  uint64_t* mask(uint32_t rank) const {
    return reinterpret_cast<uint64_t*>(agent_.data() + layout_.mask) + rank / 64;
  }
  AgentHeader* header() const { return reinterpret_cast<AgentHeader*>(agent_.data()); }
  const PodHeader* pod_header() const { return reinterpret_cast<const PodHeader*>(pod_.data()); }
  const Shape& shape() const { return shape_; }

 private:
  Shape shape_;
  Layout layout_;
  FileDescriptor pod_fd_;
  FileDescriptor agent_fd_;
  Mapping pod_;
  Mapping agent_;
};

}  // namespace epfabric::agent
