// Random commands of one ring, one in a hundred of them bad, and what has to become of them. Used
// by proxy.cc; the group that they are for is Group below.
#pragma once

#include <random>
#include <vector>

#include "counters.h"
#include "null_transport.h"

namespace epfabric::bench {

// A group of 16 ranks, each with two regions; rank 0 is ours, the last one has left.
struct Group {
  static constexpr uint32_t kRanks = 16;
  static constexpr uint32_t kLeft = kRanks - 1;
  static constexpr uint32_t kSignals = 16;
  static constexpr uint64_t kRegionBytes = (1 << 20) - 4096;
  static constexpr uint64_t kSecond = 1 << 20;  // where the second region begins
};

inline constexpr uint32_t kOneBadIn = 100;

// What an agent must have counted.
struct Expected {
  Tally tally;
  uint64_t writes = 0, signals = 0, drains = 0;
  std::array<uint64_t, static_cast<size_t>(Refusal::kCount)> refused{};
};

class CommandStream {
 public:
  // `mixed`: not only WRITEs of 7 KiB but signals and drains as well.
  CommandStream(uint32_t ring, bool mixed)
      : ring_(ring), mixed_(mixed), random_(ring + 1), words_(Group::kRanks * Group::kSignals) {}

  const Expected& expected() const { return expected_; }

  Slot next(uint64_t ticket) {
    if (below(kOneBadIn) == 0) return next_bad(ticket);
    const uint32_t kind = mixed_ ? below(100) : 0;
    if (kind < 60) return next_write(0);
    if (kind < 90) return next_write(1 + below(8));
    if (kind < 98) return next_signal();
    expected_.drains += 1;
    return pack_drain(ticket);
  }

 private:
  static constexpr uint32_t kUnits = 7168 / kUnitBytes;

  uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  uint32_t rank() { return 1 + below(Group::kRanks - 2); }

  // An offset in units at which `kUnits` fit into the region.
  uint32_t offset(uint32_t region) {
    const uint64_t begin = region == 0 ? 0 : Group::kSecond;
    const auto room = static_cast<uint32_t>(Group::kRegionBytes / kUnitBytes - kUnits + 1);
    return static_cast<uint32_t>(begin / kUnitBytes) + below(room);
  }

  Slot next_write(uint32_t advance) {
    const uint32_t from = below(2), to = below(2);
    const Write write{
        rank(), offset(from), offset(to), kUnits, advance == 0 ? 0 : below(Group::kSignals),
        advance};
    expected_.writes += 1;
    expected_.tally.write(write.rank, from << 8 | to, uint64_t{write.source} * kUnitBytes,
                          uint64_t{write.destination} * kUnitBytes, uint64_t{kUnits} * kUnitBytes);
    if (advance != 0) expect_signal(write);
    return packed(write);
  }

  Slot next_signal() {
    const Write write{rank(), 0, 0, 0, below(Group::kSignals), 1 + below(8)};
    expected_.signals += 1;
    expect_signal(write);
    Slot slot{};
    pack_signal(write.rank, write.signal, write.advance, slot);
    return slot;
  }

  void expect_signal(const Write& write) {
    uint64_t& word = words_[write.rank * Group::kSignals + write.signal];
    word += write.advance;
    expected_.tally.signal(write.rank, write.signal, word);
  }

  static Slot packed(const Write& write) {
    Slot slot{};
    if (!pack_write(write, slot)) std::abort();
    return slot;
  }

  // Every reason for which a command is refused, in turn.
  Slot next_bad(uint64_t ticket) {
    bad_ = bad_ % (static_cast<uint32_t>(Refusal::kCount) - 1) + 1;
    // The one that a ring may not serve is a barrier, which the first ring may.
    if (ring_ == 0 && static_cast<Refusal>(bad_) == Refusal::kUnsupported) bad_ = 1;
    const auto refusal = static_cast<Refusal>(bad_);
    expected_.refused[bad_] += 1;
    const Slot good = packed({1, 0, 0, kUnits, 0, 0});
    const auto beyond = static_cast<uint32_t>(Group::kRegionBytes / kUnitBytes - kUnits + 1);
    switch (refusal) {
      case Refusal::kReservedFlag:
        return {good.lo | uint64_t{1} << field::kFlag, good.hi};
      case Refusal::kUnusedField:
        return {good.lo, good.hi | uint64_t{3} << field::kSignal};
      case Refusal::kRankOutOfGroup:
        return packed({Group::kRanks, 0, 0, kUnits, 0, 0});
      case Refusal::kRankLeft:
        return packed({Group::kLeft, 0, 0, kUnits, 0, 0});
      case Refusal::kSourceOutOfRegion:
        return packed({1, beyond, 0, kUnits, 0, 0});
      case Refusal::kDestinationOutOfRegion:
        return packed({1, 0, beyond, kUnits, 0, 0});
      case Refusal::kSignalOutOfRange:
        return packed({1, 0, 0, kUnits, Group::kSignals, 1});
      case Refusal::kNoAdvance:
        return {head_of(Op::kSignal, 1), 0};
      case Refusal::kBadDrain:
        return pack_drain(ticket + 1);
      case Refusal::kHalfCas:
        return {head_of(Op::kCasSwap, 0), 7};
      case Refusal::kUnsupported:
        return pack_barrier();
      default:
        return {head_of(Op::kInvalid, 1), 7};
    }
  }

  const uint32_t ring_;
  const bool mixed_;
  std::mt19937 random_;
  std::vector<uint64_t> words_;  // signal words' values, by rank and word
  uint32_t bad_ = 0;
  Expected expected_;
};

}  // namespace epfabric::bench
