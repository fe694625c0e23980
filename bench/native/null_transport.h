// A transport that moves nothing: it says at once that a command is under way and keeps, for each
// ring, a count and a checksum of what it was given. Used by proxy.cc in place of a network.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "loop.h"

namespace epfabric::bench {

// What a ring's commands became, in order. Two tallies are equal when the same parts and signals
// came in the same order.
struct Tally {
  uint64_t count = 0;
  uint64_t sum = 0;

  void write(uint32_t rank, uint32_t regions, uint64_t source, uint64_t destination,
             uint64_t bytes) {
    add(source * 0x9e3779b97f4a7c15, destination * 0xc2b2ae3d27d4eb4f,
        (bytes << 32 | regions << 16 | rank) * 0x165667b19e3779f9);
  }
  void signal(uint32_t rank, uint32_t index, uint64_t value) {
    add(value * 0x9e3779b97f4a7c15, 0, (uint64_t{index} << 16 | rank) * 0xc2b2ae3d27d4eb4f);
  }
  bool operator==(const Tally&) const = default;

 private:
  void add(uint64_t a, uint64_t b, uint64_t c) {
    count += 1;
    sum = std::rotl(sum, 7) + (a ^ b ^ c);
  }
};

class NullTransport : public agent::NoRemote {
 public:
  // `late`: a part completes when the proxy polls, as on a network, and not at once.
  explicit NullTransport(bool late) : late_(late) {}

  agent::Posted write(const agent::WritePart& part, const agent::SignalPart* = nullptr) {
    tallies_[part.ring->index()].write(part.rank,
                                       uint32_t{part.source_region} << 8 | part.destination_region,
                                       part.source, part.destination, part.bytes);
    return {part.bytes, later(*part.ring)};
  }
  agent::Posted signal(const agent::SignalPart& part) {
    tallies_[part.ring->index()].signal(part.rank, part.index, part.value);
    return {1, later(*part.ring)};
  }
  template <class... Handlers>
  size_t poll(size_t batch, Handlers&&...) {
    size_t done = 0;
    for (; done < batch && first_ != last_; ++done) {
      const Pending& pending = pending_[first_++ % pending_.size()];
      pending.ring->part_done(pending.ticket);
    }
    return done;
  }
  uint64_t inflight() const { return last_ - first_; }

  const Tally& tally(uint32_t ring) const { return tallies_[ring]; }

 private:
  struct Pending {
    agent::Ring* ring;
    uint64_t ticket;
  };

  bool later(agent::Ring& ring) {
    if (!late_ || inflight() == pending_.size()) return false;
    pending_[last_++ % pending_.size()] = {&ring, ring.ticket()};
    return true;
  }

  const bool late_;
  std::array<Tally, kMaxRings> tallies_{};
  std::array<Pending, 1024> pending_;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
};

}  // namespace epfabric::bench
