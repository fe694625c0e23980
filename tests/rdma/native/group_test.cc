// Cores of one process that form a group over soft RoCE: bytes, signals, DRAIN, barriers, and what
// is said when a queue pair or a rail is gone.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "cores.h"
#include "ends.h"
#include "mended.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kUnits = 64;  // of 16 bytes
constexpr uint32_t kRings = 4;

GroupShape shape_of() {
  GroupShape out{{{0, 1}, {2}}, {2, 2}};
  out.ports = {{port_at('a', 0), port_at('a', 1)}, {port_at('b', 0), port_at('b', 1)}};
  return out;
}

// Where what `source` writes by `ring` lies at each rank, in units.
uint32_t place_of(uint32_t source, uint32_t ring) { return 1024 + (source * kRings + ring) * 64; }

uint64_t word_of(uint64_t round, uint32_t source, uint32_t ring, uint64_t i) {
  return (round << 32) + source * 1'000'000 + ring * 10'000 + i;
}

// One rank's share of a round: writes to all by every ring, waits for all, looks, drains, meets.
bool take_round(RankPod& me, uint32_t own, uint32_t world, uint64_t round) {
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    auto* words = reinterpret_cast<uint64_t*>(me.memory() + ring * kUnits * 16);
    for (uint64_t i = 0; i < kUnits * 2; ++i) words[i] = word_of(round, own, ring, i);
    for (uint32_t to = 0; to < world; ++to) {
      Slot slot{};
      if (!pack_write({to, ring * kUnits, place_of(own, ring), kUnits, 1, 1}, slot)) return false;
      if (!me.push(ring, slot)) return false;
    }
  }
  for (uint32_t source = 0; source < world; ++source) {
    for (uint32_t ring = 0; ring < kRings; ++ring) {
      const uint64_t* word = me.session->segments().signal(source, ring, 1);
      if (wait_at_least(word, round, me.aborts(), kTestLimitNs) != Waited::kDone) return false;
      const auto* words =
          reinterpret_cast<const uint64_t*>(me.memory() + place_of(source, ring) * 16);
      for (uint64_t i = 0; i < kUnits * 2; ++i) {
        if (words[i] != word_of(round, source, ring, i)) return false;
      }
    }
  }
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    if (!me.run(ring, pack_drain(me.rings[ring].head))) return false;
  }
  return me.run(0, pack_barrier());
}

}  // namespace

// The first rail's link goes away for a moment, and with it the routes over it.
constexpr const char* kFlap =
    "ip link set va0 down; sleep 0.3; ip link set va0 up; "
    "ip route replace 10.9.0.2 dev va0 src 10.9.0.1 table 101; "
    "ip route replace 10.9.0.1 dev vb0 src 10.9.0.2 table 102";
constexpr int kMostFlaps = 20;

// Rounds are taken for as long as links go down, so that each time something is under way.
TEST_CASE("a group goes on over a link that goes down for a moment") {
  GroupShape shape = shape_of();
  shape.settings.limits.stall_ns = kTestLimitNs;
  CoreGroup group(shape);
  std::atomic<uint64_t> rounds{0};
  std::atomic<uint64_t> last{UINT64_MAX};
  std::atomic<bool> enough{false}, failed{false};
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      for (uint64_t round = 1; round <= last && !failed; ++round) {
        if (rank == 0 && enough) last = round;  // before its barrier, so that all know of it
        if (!take_round(group.pods[rank], rank, 3, round)) failed = true;
        if (rank == 0) rounds = round;
      }
    });
  }
  const auto two_more_rounds = [&] {
    for (const uint64_t from = rounds; rounds < from + 2 && !failed;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  two_more_rounds();
  int flaps = 0;
  while (!failed && flaps < kMostFlaps && (flaps < 2 || mended_by(group).ends == 0)) {
    flaps += 1;
    CHECK(std::system(kFlap) == 0);
    two_more_rounds();
  }
  enough = true;
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(failed);
  const Mended mended = mended_by(group);
  std::printf("group_test: %d flaps, %llu ends mended, %llu operations sent again\n", flaps,
              static_cast<unsigned long long>(mended.ends),
              static_cast<unsigned long long>(mended.operations));
  CHECK(mended.ends > 0);
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}

TEST_CASE("ranks of two nodes write, signal, drain and meet over two rails") {
  CoreGroup group(shape_of());
  constexpr uint64_t kRounds = 10;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      for (uint64_t round = 1; round <= kRounds; ++round) {
        if (!take_round(group.pods[rank], rank, 3, round)) return;
      }
      good += 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(good == 3);
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}

TEST_CASE("a rank's proxies use the NICs that were chosen for it, and no others") {
  constexpr uint64_t kLeast = 200;  // packets
  for (const uint32_t rail : {1u, 0u}) {
    CAPTURE(rail);
    GroupShape shape = shape_of();
    shape.nics.assign(3, {rail, 1 - rail});
    shape.nics_used = 1;
    CoreGroup group(shape);
    const std::string own = "ra" + std::to_string(rail), other = "ra" + std::to_string(1 - rail);
    const uint64_t before = sent_packets(own), before_other = sent_packets(other);
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        for (uint64_t round = 1; round <= 10; ++round) {
          if (!take_round(group.pods[rank], rank, 3, round)) return;
        }
        good += 1;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(good == 3);
    CHECK(sent_packets(own) - before >= kLeast);
    CHECK(sent_packets(other) - before_other < kLeast / 4);
    group.close();
  }
}

TEST_CASE("a session that asks for NICs that its core has not is refused") {
  CoreSettings settings;
  settings.address = "127.0.2.1";
  settings.ports = {port_at('a', 0), port_at('a', 1)};
  Core core(settings);
  const auto opened = [&](std::vector<uint32_t> nics, uint32_t used) {
    core.open_session({1, {0, 1, 4, 16, 4}, {-1}, 1 << 20, 0, std::move(nics), used});
  };
  CHECK_THROWS_AS(opened({2}, 0), NativeError);
  CHECK_THROWS_AS(opened({0, 0}, 0), NativeError);
  CHECK_THROWS_AS(opened({0}, 2), NativeError);
  CHECK_NOTHROW(opened({1}, 1));
  core.close();
}
