// Blocked proxies that one thread looks after: they sleep longer, and commands wake them all the
// same, also once nobody had to be looked after for a while.
#include "lookout.h"

#include <doctest/doctest.h>

#include <array>
#include <atomic>

#include "pin.h"
#include "session.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

constexpr uint32_t kProxies = 4;
constexpr uint32_t kDepth = 16;
constexpr uint32_t kTries = 10;
constexpr uint64_t kLimitNs = 60'000'000'000;

// A rank alone in its group, whose proxies serve a ring each.
struct Rank {
  std::shared_ptr<Lookout> lookout = std::make_shared<Lookout>();
  Events events;
  std::shared_ptr<Session> session;
  std::shared_ptr<Epoch> epoch;
  std::vector<Producer> rings;

  Rank() {
    ProxySettings settings;
    settings.lookout = lookout;
    const Shape shape{0, 1, kProxies, kDepth, 1};
    session = std::make_shared<Session>(
        SessionSettings{1, shape, std::vector<int>(kProxies, kAnyCpu)}, settings);
    epoch = std::make_shared<Epoch>(EpochPlan{1, 1, 0, kLimitNs, {{0}}}, std::vector{session},
                                    std::vector{session->describe()},
                                    std::make_shared<BarrierStats>(3), events);
    session->join_epoch(epoch);
    epoch->start();
    const Segments& segments = session->segments();
    for (uint32_t ring = 0; ring < kProxies; ++ring) {
      rings.push_back(
          {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, kDepth});
    }
  }
  ~Rank() { session->close(kLimitNs); }

  uint64_t blocks(uint32_t proxy) const { return session->proxies()[proxy]->count().blocks.get(); }
  // Whether each proxy, from now on, comes to block again and again.
  bool come_to_rest() const {
    for (uint32_t i = 0; i < kProxies; ++i) {
      const uint64_t before = blocks(i);
      if (!within([&] { return blocks(i) > before + 2; })) return false;
    }
    return true;
  }
  // Whether a command on each ring, one after another, was carried out.
  bool push_all() {
    for (uint32_t i = 0; i < kProxies; ++i) {
      Slot slot{};
      if (!pack_signal(0, 0, 1, slot) || !rings[i].try_push(&slot, 1)) return false;
      const RingCounters& told = *session->segments().counters(i);
      if (!within([&] { return platform::load_acquire(&told.completed) == rings[i].head; }))
        return false;
    }
    return true;
  }
};

// Blocks when it was just seen awake by a look that may be the lookout's last one.
struct Sleeper : Watched {
  Lookout& lookout;
  const bool between;
  mutable std::atomic<bool> blocked{false}, woken{false};

  Sleeper(Lookout& lookout, bool between) : lookout(lookout), between(between) {}
  Seen wake_for_commands() const override {
    if (blocked.load(std::memory_order_seq_cst)) {
      woken.store(true, std::memory_order_release);
      return Seen::kWoken;
    }
    if (between && lookout.attends()) block();
    return Seen::kAwake;
  }
  void block() const {
    blocked.store(true, std::memory_order_seq_cst);
    lookout.attend();
  }
};

}  // namespace

TEST_CASE("one that blocks before the lookout rests, or while it does, is looked at") {
  for (const bool between : {true, false}) {
    CAPTURE(between);
    Lookout lookout;
    Sleeper sleeper(lookout, between);
    lookout.watch(sleeper);
    lookout.attend();
    if (!between) {
      REQUIRE(within([&] { return lookout.looks() > 0 && !lookout.attends(); }));
      sleeper.block();
    }
    CHECK(within([&] { return sleeper.woken.load(std::memory_order_acquire); }));
    lookout.forget(sleeper);
  }
}

TEST_CASE("a proxy that others look after wakes no oftener than it must") {
  const Rank rank;
  REQUIRE(rank.come_to_rest());
  const uint64_t begin_ns = platform::clock_ns(), looks = rank.lookout->looks();
  std::array<uint64_t, kProxies> before{};
  for (uint32_t i = 0; i < kProxies; ++i) before[i] = rank.blocks(i);
  REQUIRE(within([&] { return rank.blocks(0) >= before[0] + 10; }));
  for (uint32_t i = 0; i < kProxies; ++i) {
    const uint64_t blocks = rank.blocks(i) - before[i];
    // One was under way at the beginning.
    CHECK(blocks <= (platform::clock_ns() - begin_ns) / Proxy::kWatchedNs + 1);
  }
  CHECK(rank.lookout->looks() > looks);
  CHECK(rank.lookout->wakes() == 0);
}

// Nothing tells it of ranks that enter: it sleeps for a fifteenth of what others do.
TEST_CASE("a masked rank's proxy that leads barriers on looks by itself, as without a lookout") {
  const Rank rank;
  rank.epoch->mask({0});
  REQUIRE(rank.come_to_rest());
  constexpr uint64_t kBlocks = 100;
  const uint64_t leads = rank.blocks(0), other = rank.blocks(1);
  uint64_t others = 0;  // until the one that leads has blocked so often
  REQUIRE(within([&] {
    others = rank.blocks(1) - other;
    return rank.blocks(0) >= leads + kBlocks;
  }));
  CHECK(others < kBlocks * 4 / 5);
}

TEST_CASE("a command wakes a blocked proxy, also after a time in which none was blocked") {
  Rank rank;
  for (uint32_t time = 0; time < 2; ++time) {
    const uint64_t wakes = rank.lookout->wakes();
    // On a busy machine a proxy's own look may come first.
    for (uint32_t tries = 0; tries < kTries && rank.lookout->wakes() == wakes; ++tries) {
      REQUIRE(rank.come_to_rest());
      REQUIRE(rank.push_all());
    }
    CHECK(rank.lookout->wakes() > wakes);
    // All are awake for a second, so that nobody looks.
    REQUIRE(within([&] { return rank.push_all() && !rank.lookout->attends(); }));
  }
}

TEST_CASE("a proxy that has ended is looked at no more") {
  const auto lookout = std::make_shared<Lookout>();
  ProxySettings settings;
  settings.lookout = lookout;
  for (uint32_t round = 0; round < 20; ++round) {
    const Shape shape{0, 1, kProxies, kDepth, 1};
    Session session(SessionSettings{1, shape, std::vector<int>(kProxies, kAnyCpu)}, settings);
    const uint64_t looks = lookout->looks();
    lookout->attend();
    REQUIRE(within([&] { return lookout->looks() > looks; }));
    session.close(kLimitNs);
    CHECK(lookout->watched() == 0);
  }
}
