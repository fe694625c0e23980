// The checks of a command, at both sides of every edge, and random slots.
#include "check.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <random>

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kUnit = kUnitBytes;

struct Checked {
  Refusal refusal;
  Command command;
};

Checked check(const Slot& slot, uint64_t ticket, uint32_t ring, const SessionView& view,
              const Slot& second = {}) {
  Checked out{};
  out.refusal = check(slot, second, ticket, ring, view, out.command);
  return out;
}

// World of 3; rank 1 has two regions with a gap, rank 2 none.
struct World {
  std::array<Extent, 1> own{{{0, 65536}}};
  std::array<Extent, 2> other{{{0, 4096}, {65536, 65536 + 8192}}};
  std::array<std::span<const Extent>, 3> regions{own, other, std::span<const Extent>{}};
  std::array<std::atomic<uint8_t>, 3> states{};
  std::atomic<uint32_t> departed{0};
  SessionView view{3, 16, own, regions, states, &departed};

  Refusal write(const Write& write, uint64_t ticket = 0) const {
    Slot slot{};
    REQUIRE(pack_write(write, slot));
    return check(slot, ticket, 0, view).refusal;
  }
};

Slot raw(Op op, uint64_t low = 0, uint64_t hi = 0) { return {head_of(op, 0) | low, hi}; }

}  // namespace

TEST_CASE("a write that ends on a region's last byte runs, one unit further it does not") {
  const World world;
  CHECK(world.write({1, 0, 0, 4096 / kUnit, 0, 0}) == Refusal::kNone);
  CHECK(world.write({1, 0, 1, 4096 / kUnit, 0, 0}) == Refusal::kDestinationOutOfRegion);
  CHECK(world.write({1, 0, 0, 4096 / kUnit + 1, 0, 0}) == Refusal::kDestinationOutOfRegion);
  CHECK(world.write({0, 4095, 4095, 1, 0, 0}) == Refusal::kNone);
  CHECK(world.write({0, 4095, 0, 2, 0, 0}) == Refusal::kSourceOutOfRegion);
  CHECK(world.write({0, 4096, 0, 1, 0, 0}) == Refusal::kSourceOutOfRegion);
  CHECK(world.write({0, 0xffffffff, 0, 1, 0, 0}) == Refusal::kSourceOutOfRegion);
  CHECK(world.write({1, 0, 0xffffffff, kMaxUnits, 0, 0}) == Refusal::kSourceOutOfRegion);
}

TEST_CASE("a write has to lie in one region, not in the gap between two") {
  const World world;
  CHECK(world.write({1, 0, 65536 / kUnit, 8192 / kUnit, 0, 0}) == Refusal::kNone);
  CHECK(world.write({1, 0, 65536 / kUnit - 1, 1, 0, 0}) == Refusal::kDestinationOutOfRegion);
  CHECK(world.write({1, 0, 4096 / kUnit, 1, 0, 0}) == Refusal::kDestinationOutOfRegion);
  CHECK(world.write({2, 0, 0, 1, 0, 0}) == Refusal::kDestinationOutOfRegion);
  Slot slot{};
  REQUIRE(pack_write({1, 0, 65536 / kUnit, 1, 0, 0}, slot));
  CHECK(check(slot, 0, 0, world.view).command.destination_region == 1);
}

TEST_CASE("ranks: the last one of the group, the first beyond, one that left") {
  World world;
  CHECK(world.write({3, 0, 0, 1, 0, 0}) == Refusal::kRankOutOfGroup);
  CHECK(world.write({4095, 0, 0, 1, 0, 0}) == Refusal::kRankOutOfGroup);
  CHECK(world.write({1, 0, 0, 1, 0, 0}) == Refusal::kNone);
  world.states[1] = kLeft;
  world.departed = 1;
  CHECK(world.write({1, 0, 0, 1, 0, 0}) == Refusal::kRankLeft);
  CHECK(check(pack_barrier(), 0, 0, world.view).refusal == Refusal::kRankLeft);
}

TEST_CASE("signals: last word, first beyond, a word without an advance, an advance of nothing") {
  const World world;
  CHECK(world.write({1, 0, 0, 1, 15, 1}) == Refusal::kNone);
  CHECK(world.write({1, 0, 0, 1, 16, 1}) == Refusal::kSignalOutOfRange);
  Slot slot{};
  REQUIRE(pack_write({1, 0, 0, 1, 0, 0}, slot));
  slot.hi |= uint64_t{5} << field::kSignal;
  CHECK(check(slot, 0, 0, world.view).refusal == Refusal::kUnusedField);
  REQUIRE(pack_signal(1, 15, kMaxAdvance, slot));
  const Checked good = check(slot, 0, 0, world.view);
  CHECK(good.refusal == Refusal::kNone);
  CHECK(good.command.write.units == 0);
  CHECK(good.command.write.advance == kMaxAdvance);
  REQUIRE(pack_signal(1, 16, 1, slot));
  CHECK(check(slot, 0, 0, world.view).refusal == Refusal::kSignalOutOfRange);
  REQUIRE(pack_signal(1, 0, 1, slot));
  slot.lo &= ~(uint64_t{kMaxAdvance} << field::kAdvance);
  CHECK(check(slot, 0, 0, world.view).refusal == Refusal::kNoAdvance);
}

TEST_CASE("fields that an op does not use have to be 0") {
  const World world;
  Slot signal{};
  REQUIRE(pack_signal(1, 0, 1, signal));
  for (const Slot extra : {Slot{1, 0}, Slot{0, 1}, Slot{0, uint64_t{1} << field::kLength}}) {
    CHECK(check({signal.lo | extra.lo, signal.hi | extra.hi}, 0, 0, world.view).refusal ==
          Refusal::kUnusedField);
  }
  for (const uint64_t bit : {field::kAdvance, field::kRank, field::kRank + 1, field::kFlag - 1}) {
    CHECK(check(raw(Op::kDrain, uint64_t{1} << bit), 5, 0, world.view).refusal ==
          Refusal::kUnusedField);
    const bool rail = bit == field::kRank;  // a BARRIER along the rail
    CHECK(check(raw(Op::kBarrier, uint64_t{1} << bit), 5, 0, world.view).refusal ==
          (rail ? Refusal::kNone : Refusal::kUnusedField));
  }
  CHECK(check(raw(Op::kDrain, 0, 1), 5, 0, world.view).refusal == Refusal::kUnusedField);
  CHECK(check(raw(Op::kBarrier, 1), 5, 0, world.view).refusal == Refusal::kUnusedField);
  CHECK(check(raw(Op::kBarrier, 0, uint64_t{1} << 62), 5, 0, world.view).refusal ==
        Refusal::kUnusedField);
}

TEST_CASE("ops that do not exist, are not offered, or stand on the wrong ring") {
  const World world;
  CHECK(check(raw(Op::kInvalid), 0, 0, world.view).refusal == Refusal::kBadOp);
  CHECK(check(raw(Op::kWrite, uint64_t{1} << field::kFlag), 0, 0, world.view).refusal ==
        Refusal::kReservedFlag);
  CHECK(check(raw(Op::kCas), 0, 0, world.view).refusal == Refusal::kHalfCas);
  CHECK(check(raw(Op::kCasSwap), 0, 0, world.view).refusal == Refusal::kHalfCas);
  CHECK(check(pack_barrier(), 0, 0, world.view).refusal == Refusal::kNone);
  CHECK(check(pack_barrier(), 0, 1, world.view).refusal == Refusal::kUnsupported);
}

TEST_CASE("an atomic's word lies in a region whole, and its operand keeps all 64 bits") {
  const World world;
  Slot slot{}, swap{};
  const auto add = [&](uint32_t rank, uint64_t word) {
    REQUIRE(pack_atomic(Op::kAdd, rank, word, ~uint64_t{0}, slot));
    return check(slot, 0, 0, world.view).refusal;
  };
  CHECK(add(1, 0) == Refusal::kNone);
  CHECK(add(1, 4096 / 8 - 1) == Refusal::kNone);
  CHECK(add(1, 4096 / 8) == Refusal::kDestinationOutOfRegion);
  CHECK(add(1, 65536 / 8 - 1) == Refusal::kDestinationOutOfRegion);
  CHECK(add(1, (65536 + 8192) / 8 - 1) == Refusal::kNone);
  CHECK(add(1, (65536 + 8192) / 8) == Refusal::kDestinationOutOfRegion);
  CHECK(add(1, field::kLow33) == Refusal::kDestinationOutOfRegion);
  CHECK(add(2, 0) == Refusal::kDestinationOutOfRegion);
  CHECK(add(3, 0) == Refusal::kRankOutOfGroup);
  REQUIRE(pack_atomic(Op::kCas, 1, 8192, uint64_t{1} << 63 | 5, slot));
  REQUIRE(pack_atomic(Op::kCasSwap, 0, 0, ~uint64_t{0} - 1, swap));
  const Checked good = check(slot, 0, 0, world.view, swap);
  CHECK(good.refusal == Refusal::kNone);
  CHECK(good.command.op == Op::kCas);
  CHECK(good.command.destination_region == 1);
  CHECK(good.command.atomic.word == 8192);
  CHECK(good.command.atomic.operand == (uint64_t{1} << 63 | 5));
  CHECK(good.command.atomic.swap == ~uint64_t{0} - 1);
}

TEST_CASE("both slots of a CAS are checked for what they do not use") {
  const World world;
  Slot slot{}, swap{};
  REQUIRE(pack_atomic(Op::kCas, 1, 0, 1, slot));
  REQUIRE(pack_atomic(Op::kCasSwap, 0, 0, 2, swap));
  for (unsigned bit = 0; bit < field::kOp; ++bit) {
    Refusal of_swap = Refusal::kUnusedField;
    if (bit == field::kOperandTop) of_swap = Refusal::kNone;
    if (bit == field::kFlag) of_swap = Refusal::kReservedFlag;
    CHECK(check(slot, 0, 0, world.view, {swap.lo | uint64_t{1} << bit, swap.hi}).refusal ==
          of_swap);
    if (bit > field::kOperandTop && bit < field::kRank) {
      const Slot other{slot.lo | uint64_t{1} << bit, slot.hi};
      CHECK(check(other, 0, 0, world.view, swap).refusal == Refusal::kUnusedField);
    }
  }
  CHECK(check(slot, 0, 0, world.view, slot).refusal == Refusal::kHalfCas);
}

TEST_CASE("a drain names tickets up to its own, also where the low 32 bits wrap") {
  constexpr uint64_t kWrap = uint64_t{1} << 32;
  for (const uint64_t ticket :
       {uint64_t{0}, uint64_t{7}, kWrap - 1, kWrap, kWrap + 1, 5 * kWrap + 3}) {
    for (const uint64_t back :
         {uint64_t{0}, uint64_t{1}, uint64_t{3}, uint64_t{1} << 20, (uint64_t{1} << 31) - 1}) {
      const auto low = static_cast<uint32_t>(ticket - back);
      CHECK(drain_until(ticket, low) == (back <= ticket ? ticket - back : kNoTicket));
    }
    CHECK(drain_until(ticket, static_cast<uint32_t>(ticket + 1)) == kNoTicket);
    CHECK(drain_until(ticket, static_cast<uint32_t>(ticket + (uint64_t{1} << 31))) == kNoTicket);
  }
}

TEST_CASE("whatever is accepted of random slots lies inside") {
  const uint64_t seed = std::random_device{}();
  std::printf("check_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const World world;
  int accepted = 0;
  for (int i = 0; i < 300000; ++i) {
    // Mostly small fields, so that some are accepted.
    Slot slot{random() & ~kLapBit, random() & ~kLapBit};
    if (i % 4 != 0) {
      slot.lo &=
          ~(uint64_t{1} << field::kFlag) & ~(uint64_t{4092} << field::kRank) & ~field::kLow32;
      slot.lo |= random() & 8191;
      slot.hi = ((random() & 31) << field::kSignal) | ((random() & 1023) << field::kLength) |
                (random() & 8191);
    }
    const Checked checked = check(slot, random() & 0xffff, 0, world.view);
    const Write& write = checked.command.write;
    if (checked.refusal != Refusal::kNone || checked.command.op != Op::kWrite) continue;
    accepted += 1;
    const Extent from = world.own[checked.command.source_region];
    const Extent to = world.regions[write.rank][checked.command.destination_region];
    const uint64_t size = uint64_t{write.units} * kUnit;
    REQUIRE(write.source * kUnit >= from.begin);
    REQUIRE(write.source * kUnit + size <= from.end);
    REQUIRE(write.destination * kUnit >= to.begin);
    REQUIRE(write.destination * kUnit + size <= to.end);
    REQUIRE(write.signal < 16);
  }
  CHECK(accepted > 100);
}
