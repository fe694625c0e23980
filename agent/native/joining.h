// Which WRITEs of a ring travel as one: neighbours on both sides, one behind the other, to one
// rank. Pure; used by ring.h. docs/ordering.md argues why it is right.
#pragma once

#include <cstdint>

#include "check.h"

namespace epfabric::agent {

struct Joining {
  static constexpr uint32_t kMost = 8;

  uint32_t commands = kMost;                 // in one write, at most; 1 = none are joined
  uint32_t below_units = 8192 / kUnitBytes;  // each of them has fewer
  // So many operations under way to a rank: from then on a write that may still grow waits for
  // neighbours, until one of them has completed or another command comes.
  uint32_t busy = UINT32_MAX;
  bool fuse = true;  // signals of one word become the last one

  bool takes(uint32_t units) const { return units - 1 < below_units - 1; }

  // Whether `next`, the command behind `first`, may become its end. A signal is only ever delayed
  // until more bytes are there, and never passed by another word's.
  bool join(const Command& first, const Command& next) const {
    const Write &a = first.write, &b = next.write;
    return b.rank == a.rank && takes(b.units) && uint64_t{a.source} + a.units == b.source &&
           uint64_t{a.destination} + a.units == b.destination &&
           next.source_region == first.source_region &&
           next.destination_region == first.destination_region &&
           (a.advance == 0 || (fuse && b.advance != 0 && b.signal == a.signal));
  }
};

}  // namespace epfabric::agent
