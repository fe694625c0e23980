// A proxy that blocks while a BARRIER waits for it to look at its queue is woken: by itself it
// would look only when its block has lasted for as long as it may.
#include <doctest/doctest.h>
#include <epfabric/command.h>

#include <atomic>
#include <thread>

#include "hand_group.h"
#include "hand_ring.h"
#include "rc_network.h"
#include "seed.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

// A turn of its proxies does nothing but block.
class BlockingEnd : public RcEndpoint {
 public:
  using RcEndpoint::RcEndpoint;
};

constexpr uint64_t kBlockNs = 500'000'000;
constexpr int kMostBlocks = 20;
std::atomic<int> blocks{0};
std::atomic<bool> woken{false};

}  // namespace

namespace epfabric::agent {

template <>
void Loop<RemoteTransport<BlockingEnd>>::turn() {
  woken = proxy_.block(kBlockNs, kNoWaitFd);
  blocks += 1;
}

}  // namespace epfabric::agent

TEST_CASE("a proxy that begins to block after a BARRIER's release is woken, so that it ends") {
  constexpr std::pair<uint32_t, uint32_t> kDelegate{0, 0}, kOther{0, 1};
  RcRules rules;
  rules.refuse_one_in = rules.miss_one_in = rules.give_up_one_in = 0;
  RcNetwork network(seed(), rules);
  HandShape shape;
  shape.proxies = 2;
  HandGroup<RcNetwork, BlockingEnd> group(shape, seed(), network);
  group.loop_of(kOther).turn();  // by what woke it while it was set up
  REQUIRE(woken);
  HandRing here(group.session(0), 0), there(group.session(1), 0);
  here.push(pack_barrier());
  there.push(pack_barrier());
  for (int i = 0; i < 100'000 && !there.completed(); ++i) group.turn_but({kOther});
  REQUIRE(there.completed());
  // Rank 0's barrier is released, and waits for that proxy alone.
  for (int i = 0; i < 100; ++i) group.turn_of(kDelegate);
  REQUIRE_FALSE(here.completed());
  blocks = 0;
  woken = false;
  std::thread other([&] {
    while (!woken && blocks < kMostBlocks) group.loop_of(kOther).turn();
  });
  while (!woken && blocks < kMostBlocks) {
    group.turn_of(kDelegate);
    std::this_thread::yield();
  }
  other.join();
  REQUIRE(woken);
  CHECK_FALSE(here.completed());
  for (int i = 0; i < 100 && !here.completed(); ++i) {
    group.turn_of(kOther);
    group.turn_of(kDelegate);
  }
  CHECK(here.completed());
  CHECK(group.failure() == "");
}
