// Which commands of a ring become one write, and what becomes of their tickets.
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "ring.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

// Rank 0 writes to itself and to rank 1; each has two regions.
struct Fixture {
  static constexpr uint32_t kDepth = 16;
  static constexpr uint32_t kUnits = 16;  // of a write
  std::vector<Slot> slots = std::vector<Slot>(kDepth);
  RingCounters shared{};
  std::vector<AtomicResult> results = std::vector<AtomicResult>(kDepth);
  Ring ring{0, slots.data(), &shared, results.data(), kDepth};
  std::array<Extent, 2> own{{{0, 65536}, {65536, 1 << 20}}};
  std::array<std::span<const Extent>, 2> regions{own, own};
  std::array<std::atomic<uint8_t>, 2> states{};
  std::atomic<uint32_t> departed{0};
  SessionView view{2, 4, own, regions, states, &departed};
  Producer producer{slots.data(), &shared.tail, 0, 0, kDepth};
  Joining rules{};

  // The `index`th of writes that lie one behind the other, unless `change` makes it another one.
  template <class Change>
  void push(uint32_t index, Change&& change) {
    Write write{1, index * kUnits, 512 + index * kUnits, kUnits, 0, 0};
    change(write);
    Slot slot{};
    REQUIRE(pack_write(write, slot));
    REQUIRE(producer.try_push(&slot, 1));
  }
  void push(uint32_t index) {
    push(index, [](Write&) {});
  }
  // Takes one command with its neighbours; how many these are.
  uint32_t take(uint32_t budget = 32) {
    REQUIRE(ring.take(view, budget));
    ring.join(view, rules, budget);
    return ring.held().joined;
  }
  void post() {
    ring.add_part();
    ring.finish();
  }
};

template <class Change>
uint32_t joined_after(Change&& change) {
  Fixture at;
  at.push(0);
  at.push(1, change);
  return at.take();
}

uint32_t joined_by_signals(uint32_t first, uint32_t second, uint32_t second_word, bool fuse) {
  Fixture at;
  at.rules.fuse = fuse;
  at.push(0, [first](Write& write) { write.advance = first; });
  at.push(1, [second, second_word](Write& write) {
    write.advance = second;
    write.signal = second_word;
  });
  return at.take();
}

}  // namespace

TEST_CASE("neighbours become one write, and whatever is none does not") {
  CHECK(joined_after([](Write&) {}) == 1);
  CHECK(joined_after([](Write& write) { write.rank = 0; }) == 0);
  CHECK(joined_after([](Write& write) { write.source += 1; }) == 0);
  CHECK(joined_after([](Write& write) { write.destination += 1; }) == 0);
  CHECK(joined_after([](Write& write) { write.destination -= 1; }) == 0);
  CHECK(joined_after([](Write& write) { write.units = Joining{}.below_units - 1; }) == 1);
  CHECK(joined_after([](Write& write) { write.units = Joining{}.below_units; }) == 0);
}

TEST_CASE("writes of two regions stay two although their offsets meet") {
  for (const bool source : {true, false}) {
    Fixture at;
    const uint32_t last = 65536 / kUnitBytes - Fixture::kUnits;
    for (uint32_t i = 0; i < 2; ++i) {
      at.push(0, [&](Write& write) {
        (source ? write.source : write.destination) = last;
        write.source += i * Fixture::kUnits;
        write.destination += i * Fixture::kUnits;
      });
    }
    CHECK(at.take() == 0);
  }
}

TEST_CASE("a signal is never passed by bytes behind it, nor by another word's") {
  CHECK(joined_by_signals(0, 1, 2, true) == 1);
  CHECK(joined_by_signals(1, 0, 0, true) == 0);
  CHECK(joined_by_signals(1, 1, 2, true) == 0);
  CHECK(joined_by_signals(1, 1, 0, true) == 1);
  CHECK(joined_by_signals(1, 1, 0, false) == 0);
  Fixture at;
  at.push(0, [](Write& write) { write.advance = 2; });
  at.push(1, [](Write& write) { write.advance = 7; });
  CHECK(at.take() == 1);
  CHECK(at.ring.held().command.write.advance == 9);
  CHECK(at.ring.held().fused == 1);
}

TEST_CASE("tickets of joined writes complete when all of their write has, and in order") {
  Fixture at;
  for (uint32_t i = 0; i < 3; ++i) at.push(i);
  at.push(9);
  CHECK(at.take() == 2);
  CHECK(at.ring.held().command.write.units == 3 * Fixture::kUnits);
  CHECK(at.ring.ticket() == 0);
  at.ring.add_part();
  at.post();
  CHECK(at.take() == 0);
  CHECK(at.ring.ticket() == 3);
  at.post();
  at.ring.part_done(3);
  at.ring.part_done(0);
  at.ring.retire();
  CHECK(at.shared.tail == 4);
  CHECK(at.shared.completed == 0);
  at.ring.part_done(0);
  at.ring.retire();
  CHECK(at.shared.completed == 4);
  CHECK(at.ring.count().writes.get() == 4);
  CHECK(at.ring.count().joined.get() == 2);
}

TEST_CASE("what is joined is counted as commands are: against the budget, the rule and the ring") {
  Fixture at;
  for (uint32_t i = 0; i < Fixture::kDepth; ++i) at.push(i);
  uint32_t budget = 4;
  REQUIRE(at.ring.take(at.view, budget));
  at.ring.join(at.view, at.rules, budget);
  CHECK(budget == 1);
  CHECK(at.ring.held().joined == 3);
  at.post();
  CHECK(at.take() == Joining::kMost - 1);
  at.post();
  // One slot of a ring stays free, for the second half of a CAS.
  CHECK(at.take() == 2);
  at.post();
  CHECK_FALSE(at.ring.take(at.view, budget));
  at.ring.part_done(0);
  at.ring.retire();
  CHECK(at.take() == 0);
}

TEST_CASE("a write that is under way in part joins nothing more, one that is not does") {
  Fixture at;
  at.push(0);
  CHECK(at.take() == 0);
  CHECK(at.ring.may_grow(at.rules));
  at.push(1);
  CHECK_FALSE(at.ring.may_grow(at.rules));  // it has grown, once it is looked at
  CHECK(at.take() == 1);
  at.ring.held().posted_bytes = 16;
  at.push(2);
  CHECK(at.take() == 1);
}

TEST_CASE("a neighbour that is refused stays where it is, and is counted once") {
  Fixture at;
  at.push(0);
  at.push(1, [](Write& write) { write.units = 500, write.signal = 5, write.advance = 1; });
  CHECK(at.take() == 0);
  at.post();
  uint32_t budget = 1;
  CHECK_FALSE(at.ring.take(at.view, budget));
  CHECK(at.ring.count().refused[static_cast<size_t>(Refusal::kSignalOutOfRange)].get() == 1);
}

TEST_CASE("joined writes whose rank is lost are each counted as masked or refused") {
  for (const int when : {0, 1, 2}) {
    Fixture at;
    for (uint32_t i = 0; i < 3; ++i) at.push(i);
    CHECK(at.take() == 2);
    if (when == 0) at.ring.mask();
    if (when == 1) at.ring.give_up(Refusal::kRankLeft);
    if (when == 2) {
      at.post();
      at.ring.part_masked(0);
    }
    at.ring.retire();
    CHECK(at.shared.completed == 3);
    CHECK(at.shared.masked == (when == 1 ? 0 : 3));
    CHECK(at.shared.refused == (when == 1 ? 3 : 0));
    CHECK(at.ring.count().writes.get() == 0);
  }
}
