// Ranks and nodes that are lost at any moment of a barrier: the others get through, with their
// numbers in step; and sessions that are masked while others write to them.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <random>
#include <thread>

#include "barrier_cluster.h"
#include "core.h"
#include "seed.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

constexpr uint64_t kLimitNs = 60'000'000'000;
constexpr uint64_t kBarriers = 60;

// A cluster whose ranks run to the last barrier, or are lost on the way.
struct Run {
  std::mt19937_64& random;
  const std::vector<std::vector<uint32_t>>& shape;
  uint32_t world = 0;
  uint32_t leader;
  bool dissemination;
  Cluster cluster;
  std::vector<uint64_t> entered, left;
  std::vector<bool> lost, excluded, dead;  // dead: by node, its agent too
  std::vector<std::vector<bool>> told;     // by node: that another one's ranks are all excluded

  Run(std::mt19937_64& source, const std::vector<std::vector<uint32_t>>& ranks)
      : random(source),
        shape(ranks),
        leader(choose()),
        dissemination(random() % 2 == 0),
        cluster(ranks, leader, 1u << 30, dissemination) {
    entered.resize(world);
    left.resize(world);
    lost.resize(world);
    excluded.resize(world);
    dead.resize(shape.size());
    told.assign(shape.size(), std::vector<bool>(shape.size()));
  }

  uint32_t choose() {
    for (const auto& ranks : shape) world += static_cast<uint32_t>(ranks.size());
    return static_cast<uint32_t>(random() % world);
  }

  void move(uint32_t rank) {
    if (lost[rank]) return;
    Meeting& meeting = *cluster.nodes[cluster.node_of[rank]]->meeting;
    if (entered[rank] == left[rank] && entered[rank] < kBarriers) {
      if (random() % 4 == 0) return meeting.announce(entered[rank], cluster.position_of[rank], 1);
      cluster.enter(rank, entered[rank]++);
    } else if (left[rank] < entered[rank] && meeting.released(left[rank])) {
      for (uint32_t other = 0; other < world; ++other) {
        REQUIRE((excluded[other] || entered[other] > left[rank]));
      }
      meeting.leave(left[rank]++);
    }
  }

  // One more rank, or all of a node that does not lead and its agent with them.
  void lose() {
    const auto rank = static_cast<uint32_t>(random() % world);
    const uint32_t node = cluster.node_of[rank];
    const bool agent = random() % 2 == 0 && node != cluster.node_of[leader];
    const std::vector<bool> before = lost;
    lost[rank] = true;
    for (const uint32_t each : shape[node]) lost[each] = lost[each] || agent;
    if (std::count(lost.begin(), lost.end(), false) == 0) {  // one has to survive
      lost = before;
    } else if (agent) {
      dead[node] = true;
    }
  }

  // Every node has masked the lost ranks: some of them are excluded, which each node hears at a
  // time of its own.
  void exclude() {
    for (uint32_t rank = 0; rank < world; ++rank) {
      if (!lost[rank] || excluded[rank] || random() % 2) continue;
      excluded[rank] = true;
      const uint32_t node = cluster.node_of[rank];
      if (!dead[node]) cluster.nodes[node]->meeting->exclude(cluster.position_of[rank]);
    }
    for (uint32_t node = 0; node < shape.size(); ++node) {
      if (!all_excluded(node)) continue;
      for (uint32_t to = 0; to < shape.size(); ++to) {
        if (dead[to] || to == node || told[to][node] || random() % 3 == 0) continue;
        told[to][node] = true;
        cluster.nodes[to]->delegate->lose_node(node, cluster.now);
      }
    }
  }

  bool all_excluded(uint32_t node) const {
    return std::all_of(shape[node].begin(), shape[node].end(),
                       [this](uint32_t rank) { return excluded[rank]; });
  }
  bool done() const {
    for (uint32_t rank = 0; rank < world; ++rank) {
      if (!lost[rank] && left[rank] < kBarriers) return false;
    }
    return true;
  }

  void turn() {
    cluster.now += 1 + random() % 100;
    move(static_cast<uint32_t>(random() % world));
    const auto node = static_cast<uint32_t>(random() % shape.size());
    if (dead[node]) {
      cluster.net.to_node[node].clear();
      return;
    }
    if (random() % 2) cluster.deliver(node);
    cluster.step(node, random() % 3 == 0, random() % 3 != 0);
  }
};

}  // namespace

TEST_CASE(
    "whoever is lost, and whenever: the others leave every barrier, none before all entered") {
  std::mt19937_64 random(seed());
  const std::vector<std::vector<std::vector<uint32_t>>> shapes = {
      {{0, 1}},
      {{0, 1, 2}},
      {{0}, {1}},
      {{3, 0}, {1, 2}, {5, 4, 6}},
      {{0, 2}, {1, 3}, {4, 5}, {6, 7}},
      {{0}, {1}, {2}, {3}, {4}},
      {{0, 1}, {2}, {3}, {4}, {5}, {6, 7}},
      {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}};
  for (int round = 0; round < 400; ++round) {
    Run run(random, shapes[random() % shapes.size()]);
    for (uint64_t turns = 0; turns < 400'000 && !run.done(); ++turns) {
      run.turn();
      if (random() % 500 == 0) run.lose();
      if (random() % 50 == 0) run.exclude();
    }
    REQUIRE(run.done());
  }
}

TEST_CASE(
    "a node whose ranks are all excluded is not waited for, also when it had arrived already") {
  for (const bool arrived : {false, true}) {
    Cluster cluster({{0}, {1}, {2}}, 0, 1u << 30);
    for (const uint32_t rank : {0u, 2u}) cluster.enter(rank, 0);
    if (arrived) cluster.enter(1, 0);
    const auto run = [&] {
      for (int i = 0; i < 20; ++i) {
        for (const uint32_t n : {0u, 2u}) {
          cluster.step(n);
          cluster.deliver(n);
        }
      }
    };
    if (arrived) cluster.step(1), cluster.step(1);
    run();
    CHECK(cluster.nodes[2]->meeting->released(0) == arrived);
    for (const uint32_t n : {0u, 2u}) cluster.nodes[n]->delegate->lose_node(1, cluster.now);
    run();
    CHECK(cluster.nodes[0]->meeting->released(0));
    CHECK(cluster.nodes[2]->meeting->released(0));
    ControlRecord late;
    late.kind = RecordKind::kArrive;
    late.source = 1;
    late.value = 7;
    CHECK(cluster.nodes[0]->delegate->on_record(late, 1) == nullptr);
    for (const uint32_t rank : {0u, 2u}) cluster.enter(rank, 1);
    run();
    CHECK(cluster.nodes[2]->meeting->released(1));
  }
}

TEST_CASE("a leader whose ranks are all excluded runs out of no time by dissemination") {
  constexpr uint64_t kTimeout = 1'000'000;
  for (const bool entered : {false, true}) {
    CAPTURE(entered);
    Cluster cluster({{0}, {1}, {2}}, 0, kTimeout, true);
    if (entered) cluster.enter(0, 0);
    for (const uint32_t rank : {1u, 2u}) {
      if (!entered || rank == 1) cluster.enter(rank, 0);
    }
    cluster.settle();
    cluster.now += kTimeout / 2;
    cluster.settle();  // the others tell the leader that they are there
    cluster.nodes[0]->meeting->exclude(0);
    for (const uint32_t n : {1u, 2u}) cluster.nodes[n]->delegate->lose_node(0, cluster.now);
    if (entered) cluster.enter(2, 0);
    cluster.settle();
    for (const uint32_t rank : {1u, 2u}) cluster.leave(rank, 0);
    CHECK_FALSE(cluster.nodes[0]->delegate->timed_out(cluster.now + 10 * kTimeout));
  }
}

TEST_CASE("the bound of a barrier does not start with a node that is lost since") {
  constexpr uint64_t kTimeout = 1'000'000;
  for (const bool dissemination : {false, true}) {
    CAPTURE(dissemination);
    Cluster cluster({{0}, {1}, {2}, {3}}, 0, kTimeout, dissemination);
    Delegate& leader = *cluster.nodes[0]->delegate;
    cluster.enter(1, 0);
    cluster.settle();
    cluster.now += kTimeout / 2;
    cluster.settle();
    leader.lose_node(3, cluster.now);  // which had not arrived: node 1 still waits
    CHECK(leader.timed_out(cluster.now + 2 * kTimeout));
    leader.lose_node(1, cluster.now);
    CHECK_FALSE(leader.timed_out(cluster.now + 10 * kTimeout));  // nobody waits
    cluster.now += 10 * kTimeout;
    cluster.enter(0, 0);
    CHECK_FALSE(leader.timed_out(cluster.now + kTimeout));
  }
}

TEST_CASE("nor does the next barrier's with a node that was early there and is lost since") {
  constexpr uint64_t kTimeout = 1'000'000;
  Cluster cluster({{0}, {1}, {2}}, 0, kTimeout);
  for (const uint32_t rank : {0u, 1u, 2u}) cluster.enter(rank, 0);
  const auto move = [&cluster](bool leader_settles) {
    for (int i = 0; i < 20; ++i) {
      cluster.step(0, false, leader_settles);
      cluster.deliver(0);
      for (const uint32_t n : {1u, 2u}) cluster.step(n), cluster.deliver(n);
    }
  };
  move(false);  // nodes 1 and 2 are released, node 0 not yet
  cluster.leave(1, 0);
  cluster.enter(1, 1);
  move(false);
  cluster.nodes[0]->delegate->lose_node(1, cluster.now);
  move(true);
  REQUIRE(cluster.nodes[0]->delegate->number() == 1);
  CHECK_FALSE(cluster.nodes[0]->delegate->timed_out(cluster.now + 10 * kTimeout));
}

TEST_CASE("ranks on threads go on when one stops anywhere and is excluded") {
  constexpr uint32_t kMembers = 4;
  constexpr uint64_t kCount = 300;
  std::mt19937_64 random(seed());
  for (int round = 0; round < 8; ++round) {
    Meeting meeting(kMembers);
    const uint64_t stop = random() % kCount;
    const auto where = random() % 3;
    std::atomic<bool> stopped{false};
    const auto rank = [&](uint32_t position, bool victim) {
      for (uint64_t n = 0; n < kCount; ++n) {
        if (victim && n == stop && where == 0) break;
        meeting.announce(n, position, n + 1);
        if (victim && n == stop && where == 1) break;
        meeting.enter(n, position, n + 1);
        if (victim && n == stop) break;
        const bool released = within([&] {
          if (position == 0 && meeting.full(n)) meeting.release(n, n + 1);
          return meeting.released(n);
        });
        if (!released) break;  // the last barrier is not released then
        meeting.leave(n);
      }
      if (victim) stopped = true;
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kMembers; ++i) threads.emplace_back(rank, i, i == 2);
    const bool gone = within([&] { return stopped.load(); });
    meeting.exclude(2);
    for (std::thread& thread : threads) thread.join();
    REQUIRE(gone);
    REQUIRE(meeting.released(kCount - 1));
  }
}

namespace {

// Three ranks on one core, each pushed to by a thread of its own.
struct Local {
  Core core{CoreSettings{}};
  std::vector<std::shared_ptr<Session>> sessions;

  Local() {
    for (uint32_t rank = 0; rank < 3; ++rank) {
      sessions.push_back(core.open_session({1, {rank, 3, 2, 16, 4}, {-1, -1}, 65536}));
      const FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      const std::vector<std::byte> zeros(65536);
      REQUIRE(::write(fd.get(), zeros.data(), zeros.size()) == ssize_t{65536});
      sessions.back()->register_memfd(fd.get(), 65536);
    }
    core.open_epoch({1, 1, 0, kLimitNs, {{0, 1, 2}}, true}, sessions, {});
    core.start_epoch(1);
  }

  Producer producer(uint32_t rank, uint32_t ring) const {
    const Segments& segments = sessions[rank]->segments();
    return {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, 16};
  }
  bool run(uint32_t rank, uint32_t ring, Producer& to, const Slot& slot) const {
    const Segments& segments = sessions[rank]->segments();
    const AbortWords aborts{&segments.pod_header()->abort, &segments.header()->abort};
    return within([&] { return to.try_push(&slot, 1); }) &&
           wait_at_least(&segments.counters(ring)->completed, to.head, aborts, kLimitNs) ==
               Waited::kDone;
  }
};

}  // namespace

TEST_CASE(
    "a rank is masked while others write to it: its memory goes or waits, they and their barrier "
    "go on") {
  for (const uint32_t victim : {2u, 0u}) {  // 0 leads: its proxy 0 stays as the delegate
    Local local;
    std::atomic<bool> end{false};
    const auto write = [&](uint32_t rank) {
      Producer ring = local.producer(rank, 1);
      Slot slot{};
      bool whole = pack_write({victim, 0, 1024 * (1 + rank), 1024, 1, 1}, slot);
      while (whole && !end) whole = local.run(rank, 1, ring, slot);
      CHECK(whole);
    };
    const uint32_t others[] = {1, victim == 0 ? 2u : 0u};
    std::vector<std::thread> threads;
    for (const uint32_t rank : others) threads.emplace_back(write, rank);
    const uint64_t* signal = local.sessions[victim]->segments().signal(1, 1, 1);
    const bool written = within([&] { return platform::load_acquire(signal) >= 100; });
    local.core.mask_ranks(1, {victim});
    local.core.mask_ranks(1, {victim});
    CHECK(local.sessions[victim]->segments().header()->abort == 1);
    local.core.exclude_ranks(1, {victim});
    local.sessions[victim]->close(kLimitNs);
    CHECK(local.sessions[victim]->closed() == (victim == 2));
    CHECK(local.sessions[victim]->regions().empty() == (victim == 2));
    for (const uint32_t rank : others) {
      const auto& masked = local.sessions[rank]->rings()[1]->count().masked;
      CHECK(within([&] { return masked.get() >= 100; }));
      CHECK(*local.sessions[rank]->segments().mask(victim) == uint64_t{1} << victim);
    }
    end = true;
    for (std::thread& thread : threads) thread.join();
    REQUIRE(written);
    std::vector<std::thread> meet;
    for (const uint32_t rank : others) {
      meet.emplace_back([&local, rank] {
        Producer ring = local.producer(rank, 0);
        int met = 0;
        while (met < 50 && local.run(rank, 0, ring, pack_barrier())) ++met;
        CHECK(met == 50);
      });
    }
    for (std::thread& thread : meet) thread.join();
    local.core.close_epoch(1);
    CHECK(local.sessions[victim]->closed());
    CHECK(local.sessions[victim]->regions().empty());
    local.core.close();
  }
}
