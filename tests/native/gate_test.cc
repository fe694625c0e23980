// Order over a network that keeps none: sequences, their window and what is told of them, by
// themselves.
#include "gate.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "seed.h"

using namespace epfabric::agent;

namespace {

// Just below the wraps of 16 and 32 bits.
constexpr uint64_t kFirst = (uint64_t{1} << 32) - 3 * kWindow / 2;

Step step_of(uint64_t sequence) {
  return sequence % 7 == 0 ? Step::kRecord : sequence % 11 == 0 ? Step::kAsk : Step::kPayload;
}

}  // namespace

TEST_CASE("sequences come out in order, whatever order a whole window of them came in, and twice") {
  std::minstd_rand random(static_cast<uint32_t>(epfabric::test::seed()));
  Departures departures(kFirst);
  Arrivals arrivals(kFirst);
  for (int windows = 0; windows < 5; ++windows) {
    std::vector<uint64_t> under_way;
    for (; departures.room(); departures.sent(step_of(under_way.back())))
      under_way.push_back(departures.total());
    REQUIRE(under_way.size() == kWindow);
    const uint64_t first = under_way.front();
    std::shuffle(under_way.begin(), under_way.end(), random);
    uint64_t taken = first;
    for (const uint64_t sequence : under_way) {
      const auto imm = static_cast<uint16_t>(sequence);
      REQUIRE(arrivals.arrive(imm, step_of(sequence)) == Arrivals::Came::kNew);
      for (Step step; arrivals.next(step); ++taken) REQUIRE(step == step_of(taken));
      REQUIRE(arrivals.arrive(imm, step_of(sequence)) == Arrivals::Came::kAgain);
    }
    REQUIRE(taken == departures.total());
    REQUIRE(arrivals.owes());
    REQUIRE(departures.acknowledge(static_cast<uint16_t>(arrivals.taken())));
    arrivals.credit();
    arrivals.credited();
    CHECK_FALSE(arrivals.owes());
  }
}

TEST_CASE("what lies outside of the window, and credit for what was not sent, are faults") {
  Departures departures(kFirst);
  Arrivals arrivals(kFirst);
  CHECK(arrivals.arrive(static_cast<uint16_t>(kFirst + kWindow), Step::kPayload) ==
        Arrivals::Came::kOutside);
  CHECK(arrivals.arrive(static_cast<uint16_t>(kFirst + kWindow - 1), Step::kPayload) ==
        Arrivals::Came::kNew);
  departures.sent(Step::kPayload);
  CHECK_FALSE(departures.acknowledge(static_cast<uint16_t>(kFirst + 2)));
  CHECK_FALSE(departures.acknowledge(static_cast<uint32_t>(kFirst + 2)));
  CHECK(departures.acknowledge(static_cast<uint32_t>(kFirst + 1)));
  CHECK(departures.acknowledge(static_cast<uint16_t>(kFirst)));  // older, and no fault
  CHECK(departures.acknowledged() == kFirst + 1);
}

TEST_CASE("a credit that comes late is never taken for a newer one, whatever records told since") {
  Departures departures(kFirst);
  Arrivals arrivals(kFirst);
  const auto go_on = [&](uint32_t count) {
    for (uint32_t i = 0; i < count && departures.room(); ++i) {
      (void)arrivals.arrive(departures.sequence(), Step::kPayload);
      departures.sent(Step::kPayload);
      for (Step step; arrivals.next(step);) {
      }
    }
  };
  go_on(100);
  const auto late = static_cast<uint16_t>(arrivals.taken());
  arrivals.credit();
  for (int i = 0; i < 16; ++i) {  // four times as many as 16 bits can tell apart
    go_on(kWindow);
    const uint64_t told = arrivals.tellable();
    arrivals.told(told);
    REQUIRE(departures.acknowledge(static_cast<uint32_t>(told)));
    const uint64_t before = departures.acknowledged();
    REQUIRE(departures.acknowledge(late));
    REQUIRE(departures.acknowledged() == before);
  }
  CHECK(departures.acknowledged() < arrivals.taken());  // it was held back
  arrivals.credited();
  CHECK(arrivals.tellable() == arrivals.taken());
}

TEST_CASE("a record's slot is free when all sequences up to it are acknowledged, not before") {
  Departures departures(kFirst);
  for (int i = 0; i < 3; ++i) departures.sent(Step::kPayload);
  departures.sent(Step::kRecord);
  REQUIRE(departures.acknowledge(static_cast<uint32_t>(kFirst + 3)));
  CHECK(departures.records_acknowledged() == 0);
  REQUIRE(departures.acknowledge(static_cast<uint32_t>(kFirst + 4)));
  CHECK(departures.records_acknowledged() == 1);
}
