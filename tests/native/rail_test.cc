// Barriers between cores over a network: of all ranks and along rails, by both algorithms. Each
// rank is a thread that enters one after the other at its own pace.
#include <atomic>
#include <random>
#include <thread>

#include "cores.h"
#include "seed.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;
using epfabric::test::within;

namespace {

constexpr uint64_t kBarriers = 60;

struct Counts {
  std::atomic<uint64_t> full{0};    // entered, of all ranks
  std::atomic<uint64_t> rail[2]{};  // entered, by rail
};

}  // namespace

TEST_CASE(
    "nobody leaves a barrier of its rail before its rail is there, nor one of all before all") {
  for (const bool dissemination : {false, true}) {
    CAPTURE(dissemination);
    GroupShape shape{{{0, 1}, {2, 3}, {4}, {5, 6}, {7}}, {1, 2, 1, 1, 2}};
    shape.settings.provider = "twin";
    shape.dissemination = dissemination;
    const std::vector<uint32_t> rail_of{0, 1, 0, 1, 0, 0, 1, 0};
    const uint64_t sizes[] = {5, 3};
    CoreGroup group(shape);
    Counts counts;
    std::atomic<bool> right{true};
    std::vector<std::thread> ranks;
    for (uint32_t rank = 0; rank < 8; ++rank) {
      const uint64_t own_seed = epfabric::test::seed() + rank;
      ranks.emplace_back([&, rank, own_seed] {
        std::mt19937_64 random(own_seed);
        RankPod& pod = group.pods[rank];
        std::atomic<uint64_t>& rail = counts.rail[rail_of[rank]];
        for (uint64_t n = 1; n <= kBarriers && right; ++n) {
          if (random() % 4 == 0) std::this_thread::yield();
          // The same on all ranks of the group: after every third one along rails comes one of all.
          rail.fetch_add(1);
          bool ran = pod.run(0, pack_barrier(true));
          if (rail.load() < n * sizes[rail_of[rank]]) right = false;
          if (n % 3 == 0) {
            counts.full.fetch_add(1);
            ran = ran && pod.run(0, pack_barrier());
            if (counts.full.load() < n / 3 * 8) right = false;
          }
          if (!ran) right = false;
        }
      });
    }
    for (std::thread& rank : ranks) rank.join();
    CHECK(right);
    CHECK(counts.full == kBarriers / 3 * 8);
    const auto stats = group.cores[0]->barrier_stats(1);
    // The last one's times are written once it has let go.
    const auto total = [](BarrierStats& of) { return of.phase(Phase::kTotal).snapshot().count; };
    within([&] { return total(*stats) + total(stats->rails()) >= kBarriers / 3 + 2 * kBarriers; });
    CHECK(total(stats->rails()) == 2 * kBarriers);
    CHECK(total(*stats) == kBarriers / 3);
    group.close();
  }
}

TEST_CASE(
    "a barrier along a rail that runs out of its time says which rank of the rail is missing") {
  for (const bool dissemination : {false, true}) {
    GroupShape shape{{{0, 1}, {2, 3}}, {1, 1}};
    shape.settings.provider = "twin";
    shape.dissemination = dissemination;
    shape.barrier_ns = 300'000'000;
    CoreGroup group(shape);
    CHECK_FALSE(group.pods[1].run(0, pack_barrier(true)));  // rank 3 does not come
    std::vector<Event> events;                              // the abort words come before it
    within([&] { return !(events = group.cores[0]->events().take()).empty(); });
    REQUIRE(events.size() == 1);
    CAPTURE(events[0].detail);
    CHECK(events[0].kind == "barrier_timeout");
    CHECK(events[0].ranks == std::vector<uint32_t>{3});
    CHECK(events[0].detail.find("barrier of rail 1") == 0);
    for (const auto& core : group.cores) core->fail_epoch(1, "over");
    for (RankPod& pod : group.pods) pod.session->close(kTestLimitNs);
  }
}
