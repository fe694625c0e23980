// Ranks of the same node, host memory: the writer's proxy copies into the destination session's
// region and stores the signal word. Done when it returns. Used by loop.h.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "atomics.h"
#include "region.h"
#include "ring.h"
#include "segment.h"
#include "transport.h"

namespace epfabric::agent {

// A rank of this node, as the other local ranks' proxies write to it.
struct LocalTarget {
  const Segments* segments = nullptr;  // nullptr: the rank is on another node
  const std::vector<Region>* regions = nullptr;
};

class LoopbackTransport {
 public:
  LoopbackTransport() = default;
  LoopbackTransport(uint32_t own_rank, const std::vector<Region>* own,
                    std::span<const LocalTarget> targets)
      : own_rank_(own_rank), own_(own), targets_(targets) {}

  bool serves(uint32_t rank) const { return targets_[rank].segments != nullptr; }

  // Whether a CPU may do it: none touches GPU memory.
  bool may_write(uint32_t rank, uint8_t source_region, uint8_t destination_region) const {
    return !(*own_)[source_region].foreign() && may_change(rank, destination_region);
  }
  bool may_change(uint32_t rank, uint8_t region) const {
    return !(*targets_[rank].regions)[region].foreign();
  }

  Posted write(const WritePart& part, const SignalPart*) const {
    const std::byte* from = (*own_)[part.source_region].at(part.source);
    std::byte* to = (*targets_[part.rank].regions)[part.destination_region].at(part.destination);
    std::memmove(to, from, part.bytes);  // a rank may write to itself, also overlapping
    return {part.bytes, false};
  }

  Posted signal(const SignalPart& part) const {
    const Segments& to = *targets_[part.rank].segments;
    // Partner: the destination's wait_at_least(); the payload above is visible with it.
    platform::store_release(to.signal(own_rank_, part.ring->index(), part.index), part.value);
    return {1, false};
  }

  Applied atomic(const AtomicPart& part) const {
    const Atomic& atomic = *part.atomic;
    std::byte* word = (*targets_[atomic.rank].regions)[part.region].at(atomic.word * kWordBytes);
    return {Applied::How::kDone, apply(word, part.cas, atomic.operand, atomic.swap)};
  }

 private:
  uint32_t own_rank_ = 0;
  const std::vector<Region>* own_ = nullptr;
  std::span<const LocalTarget> targets_;
};
static_assert(Transport<LoopbackTransport>);

}  // namespace epfabric::agent
