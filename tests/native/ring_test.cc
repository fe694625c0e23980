// A ring as its proxy sees it: taking, refusing, retiring in order, with a producer on another
// thread.
#include "ring.h"

#include <doctest/doctest.h>

#include <array>
#include <thread>
#include <vector>

using namespace epfabric;
using namespace epfabric::agent;

namespace {

struct Fixture {
  static constexpr uint32_t kDepth = 16;
  std::vector<Slot> slots = std::vector<Slot>(kDepth);
  RingCounters shared{};
  std::vector<AtomicResult> results = std::vector<AtomicResult>(kDepth);
  Ring ring{0, slots.data(), &shared, results.data(), kDepth};
  std::array<Extent, 1> own{{{0, 65536}}};
  std::array<std::span<const Extent>, 1> regions{own};
  std::array<std::atomic<uint8_t>, 1> states{};
  std::atomic<uint32_t> departed{0};
  SessionView view{1, 4, own, regions, states, &departed};
  Producer producer{slots.data(), &shared.tail, 0, 0, kDepth};

  bool push(const Slot& slot) { return producer.try_push(&slot, 1); }
  bool take(uint32_t budget = 32) { return ring.take(view, budget); }
};

Slot write_of(uint32_t destination) {
  Slot slot{};
  REQUIRE(pack_write({0, 0, destination, 1, 0, 0}, slot));
  return slot;
}

Slot raw_bad() { return {uint64_t{1} << field::kFlag | head_of(Op::kWrite, 0), 0}; }

}  // namespace

TEST_CASE("a slot with one half visible is not taken") {
  Fixture at;
  const Slot slot = write_of(3);
  CHECK_FALSE(at.take());
  at.slots[0].lo = slot.lo | kLapBit;
  CHECK_FALSE(at.take());
  at.slots[0].hi = slot.hi;  // the lap bit is still missing
  CHECK_FALSE(at.take());
  at.slots[0].hi = slot.hi | kLapBit;
  CHECK(at.take());
  CHECK(at.ring.held().command.write.destination == 3);
}

TEST_CASE("a command changed after it was taken is not seen") {
  Fixture at;
  REQUIRE(at.push(write_of(3)));
  REQUIRE(at.take());
  at.slots[0] = {~uint64_t{0}, ~uint64_t{0}};
  CHECK(at.ring.held().command.write.destination == 3);
  CHECK(at.ring.held().command.op == Op::kWrite);
}

TEST_CASE("tickets retire in order whatever order their parts complete in") {
  Fixture at;
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(at.push(write_of(i)));
    REQUIRE(at.take());
    at.ring.add_part();
    if (i == 1) at.ring.add_part();
    at.ring.finish();
  }
  at.ring.retire();
  CHECK(at.shared.tail == 3);
  CHECK(at.shared.completed == 0);
  at.ring.part_done(2);
  at.ring.part_done(1);
  at.ring.retire();
  CHECK(at.shared.completed == 0);
  at.ring.part_done(0);
  at.ring.retire();
  CHECK(at.shared.completed == 1);
  CHECK_FALSE(at.ring.idle());
  at.ring.part_done(1);
  at.ring.retire();
  CHECK(at.shared.completed == 3);
  CHECK(at.ring.idle());
}

TEST_CASE("a refused command retires, is counted by reason and told to the pod") {
  Fixture at;
  REQUIRE(at.push(write_of(0)));
  REQUIRE(at.push(write_of(4096)));  // one unit behind the region
  REQUIRE(at.take());
  at.ring.finish();
  CHECK_FALSE(at.take());
  at.ring.retire();
  CHECK(at.shared.completed == 2);
  CHECK(at.shared.refused == 1);
  CHECK(at.shared.last_refused_ticket == 1);
  CHECK(at.shared.last_refused_reason == static_cast<uint64_t>(Refusal::kDestinationOutOfRegion));
  CHECK(at.ring.count().refused[static_cast<size_t>(Refusal::kDestinationOutOfRegion)].get() == 1);
  CHECK(at.ring.count().writes.get() == 1);
}

TEST_CASE("a CAS is taken when both its slots are visible, whichever came first") {
  Fixture at;
  Slot first{}, second{};
  REQUIRE(pack_atomic(Op::kCas, 0, 1, 2, first));
  REQUIRE(pack_atomic(Op::kCasSwap, 0, 0, 3, second));
  at.slots[1] = {second.lo | kLapBit, second.hi | kLapBit};
  CHECK_FALSE(at.take());
  CHECK(at.ring.taken() == 0);
  at.slots[0] = {first.lo | kLapBit, first.hi | kLapBit};
  REQUIRE(at.take());
  CHECK(at.ring.held().command.atomic.operand == 2);
  CHECK(at.ring.held().command.atomic.swap == 3);
  at.ring.answer(77);
  at.ring.finish();
  at.ring.retire();
  CHECK(at.shared.completed == 2);
  CHECK(at.results[0].old == 77);
  CHECK(at.results[0].done == 1);
  CHECK(at.ring.count().swaps.get() == 1);
}

TEST_CASE("a refused CAS is one command of two slots") {
  Fixture at;
  Slot pair[2];
  REQUIRE(pack_atomic(Op::kCas, 0, 65536 / 8, 2, pair[0]));
  REQUIRE(pack_atomic(Op::kCasSwap, 0, 0, 3, pair[1]));
  REQUIRE(at.producer.try_push(pair, 2));
  CHECK_FALSE(at.take());
  CHECK(at.ring.taken() == 2);
  const auto reason = static_cast<size_t>(Refusal::kDestinationOutOfRegion);
  CHECK(at.ring.count().refused[reason].get() == 1);
  CHECK(at.ring.count().refused_slots[reason].get() == 2);
  at.ring.retire();
  CHECK(at.shared.completed == 2);
  CHECK(at.shared.refused == 1);
  CHECK(at.shared.last_refused_ticket == 0);
  CHECK(at.results[0].done == 0);
}

TEST_CASE("an atomic completes with its answer, and only the rank that was asked gives it") {
  Fixture at;
  Slot add{};
  REQUIRE(pack_atomic(Op::kAdd, 0, 1, 2, add));
  for (uint32_t i = 0; i < 2; ++i) {
    REQUIRE(at.push(add));
    REQUIRE(at.take());
    at.ring.await_answer(3 + i);
    at.ring.finish();
  }
  CHECK_FALSE(at.ring.take_answer(0, 4, 9));  // of ticket 1
  CHECK_FALSE(at.ring.take_answer(2, 3, 9));  // not taken yet
  CHECK(at.ring.take_answer(1, 4, 9));
  CHECK_FALSE(at.ring.take_answer(1, 4, 9));
  at.ring.retire();
  CHECK(at.shared.completed == 0);
  at.ring.abandon_answers(Refusal::kNone, [](uint32_t rank) { return rank == 3; });
  at.ring.retire();
  CHECK(at.shared.completed == 2);
  CHECK(at.shared.masked == 1);
  CHECK_FALSE(at.ring.take_answer(0, 3, 9));  // too late
  REQUIRE(at.push(add));
  REQUIRE(at.take());
  at.ring.await_answer(3);
  at.ring.finish();
  at.ring.abandon_answers(Refusal::kRankLeft, [](uint32_t rank) { return rank == 3; });
  at.ring.retire();
  CHECK(at.shared.completed == 3);
  CHECK(at.shared.masked == 1);
  CHECK(at.shared.last_refused_ticket == 2);
  CHECK(at.results[0].done == 0);
  CHECK(at.results[1].old == 9);
  CHECK(at.ring.count().adds.get() == 1);
  CHECK(at.ring.idle());
}

TEST_CASE("half a CAS is refused alone and what follows runs") {
  Fixture at;
  Slot first{}, second{};
  REQUIRE(pack_atomic(Op::kCas, 0, 1, 2, first));
  REQUIRE(pack_atomic(Op::kCasSwap, 0, 0, 3, second));
  REQUIRE(at.push(first));
  REQUIRE(at.push(write_of(1)));
  REQUIRE(at.take());
  CHECK(at.ring.taken() == 1);
  at.ring.finish();
  REQUIRE(at.push(second));
  CHECK_FALSE(at.take());
  CHECK(at.ring.taken() == 3);
  CHECK(at.ring.count().refused[static_cast<size_t>(Refusal::kHalfCas)].get() == 2);
}

TEST_CASE("refused commands use up the budget, so that they cannot keep a proxy busy") {
  Fixture at;
  for (int i = 0; i < 6; ++i) REQUIRE(at.push(raw_bad()));
  CHECK_FALSE(at.take(4));
  CHECK(at.ring.taken() == 4);
}

TEST_CASE("no ticket is lost or doubled over many laps with a producer on another thread") {
  Fixture at;
  constexpr uint32_t kCommands = 20 * Fixture::kDepth + 5;
  std::vector<uint64_t> payload(64);
  std::thread pod([&] {
    for (uint32_t i = 0; i < kCommands; ++i) {
      payload[i % 64] = i;  // the fence of try_push() makes it visible to whoever takes the command
      while (!at.push(write_of(i % 4096))) std::this_thread::yield();
      // At most 16 are visible at once, so payload[i % 64] is not stored again before it was read.
    }
  });
  uint32_t seen = 0;
  while (seen < kCommands) {
    if (!at.take()) {
      at.ring.retire();
      std::this_thread::yield();
      continue;
    }
    REQUIRE(at.ring.held().command.write.destination == seen % 4096);
    REQUIRE(payload[seen % 64] == seen);
    at.ring.finish();
    seen += 1;
    if (seen % 7 == 0) at.ring.retire();
  }
  pod.join();
  at.ring.retire();
  CHECK(at.shared.completed == kCommands);
  CHECK(at.shared.tail == kCommands);
  CHECK(at.ring.idle());
}
