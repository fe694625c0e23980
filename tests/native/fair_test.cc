// Rings of one proxy that are served by turns, moved by hand.
#include <doctest/doctest.h>

#include "hand_group.h"
#include "seed.h"
#include "srd_network.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

TEST_CASE("a ring that never runs out of ATOMICs keeps no other ring waiting") {
  constexpr uint32_t kDepth = 64;
  constexpr int kTurns = 20;
  SrdNetwork network(seed(), {});
  HandGroup<SrdNetwork, SrdEndpoint> group({.nodes = {{0, 1}, {2}}, .depth = kDepth}, seed(),
                                           network);
  const Segments& segments = group.sessions()[0]->segments();
  std::vector<Producer> rings;
  for (uint32_t ring = 0; ring < 2; ++ring) {
    rings.push_back(
        {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, kDepth});
  }
  Slot add{}, write{};
  REQUIRE(pack_atomic(Op::kAdd, 1, 0, 1, add));  // a word of this node: done at once
  REQUIRE(pack_write({1, 4, 8, 1, 0, 0}, write));
  REQUIRE(rings[1].try_push(&write, 1));
  for (int turn = 0; turn < kTurns; ++turn) {
    while (rings[0].try_push(&add, 1)) {
    }
    group.turn_all();
  }
  CHECK(platform::load_acquire(&segments.counters(1)->completed) == 1);
  CHECK(platform::load_acquire(&segments.counters(0)->completed) > kTurns);
  CHECK(group.failure() == "");
}
