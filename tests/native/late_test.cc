// What a peer says once its rank is masked here, over a network without order: a late answer is
// thrown away and keeps nothing behind it back, an order is not applied any more.
#include <doctest/doctest.h>

#include <random>

#include "hand_group.h"
#include "seed.h"
#include "srd_network.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

constexpr uint32_t kDepth = 64;
constexpr uint64_t kMostTurns = 5000;  // fewer than until a proxy's next beat

// Two ranks on two nodes.
struct Pair {
  SrdNetwork network;
  HandGroup<SrdNetwork, SrdEndpoint> group;
  std::vector<Producer> rings;  // by rank: ring 0

  explicit Pair(uint64_t seed)
      : network(seed, {.delay = 120}), group({.depth = kDepth}, seed, network) {
    for (const Session* session : group.sessions()) {
      const Segments& segments = session->segments();
      rings.push_back(
          {const_cast<Slot*>(segments.slots(0)), &segments.counters(0)->tail, 0, 0, kDepth});
    }
  }

  bool add(uint32_t from, uint32_t to) {
    Slot slot{};
    return pack_atomic(Op::kAdd, to, 0, 1, slot) && rings[from].try_push(&slot, 1);
  }
  bool signal(uint32_t from, uint32_t to) {
    Slot slot{};
    return pack_signal(to, 0, 1, slot) && rings[from].try_push(&slot, 1);
  }
  uint64_t word(uint32_t rank) const {
    return platform::load_acquire(
        reinterpret_cast<const uint64_t*>(group.sessions()[rank]->regions()[0].memory.data()));
  }
  uint64_t signalled(uint32_t rank, uint32_t by) const {
    return platform::load_acquire(group.sessions()[rank]->segments().signal(by, 0, 0));
  }
  template <class Done>
  bool turn_until(Done&& done) {
    for (uint64_t turns = 0; !done(); ++turns) {
      if (turns == kMostTurns) return false;
      group.turn();
    }
    return true;
  }
};

}  // namespace

TEST_CASE("an answer that comes after its rank was masked keeps nothing behind it back") {
  for (uint64_t i = 0; i < 40; ++i) {
    CAPTURE(seed() + i);
    Pair pair(seed() + i);
    REQUIRE(pair.add(0, 1));
    REQUIRE(pair.turn_until([&] { return pair.word(1) == 1; }));
    REQUIRE(pair.signal(1, 0));
    pair.group.epochs[0]->mask({1});
    CHECK(pair.turn_until([&] { return pair.signalled(0, 1) == 1; }));
    CHECK(pair.group.failure() == "");
  }
}

TEST_CASE("an ATOMIC that a rank sent before it was masked here is not applied after") {
  Pair pair(seed());
  REQUIRE(pair.add(1, 0));
  REQUIRE(pair.signal(1, 0));
  pair.group.epochs[0]->mask({1});
  CHECK(pair.turn_until([&] { return pair.signalled(0, 1) == 1; }));  // it came behind the ATOMIC
  CHECK(pair.word(0) == 0);
}
