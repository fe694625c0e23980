// The barrier between nodes, by both algorithms, as a state machine on an in-memory network, under
// random schedules and with bad records.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <thread>

#include "barrier_cluster.h"

using namespace epfabric::agent;
using namespace epfabric::test;

TEST_CASE("no rank leaves a barrier before every rank has entered it, and all get through") {
  const uint64_t seed = std::random_device{}();
  std::printf("barrier_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<std::vector<std::vector<uint32_t>>> shapes = {
      {{0}},
      {{0, 1, 2}},
      {{0}, {1}},
      {{3, 0}, {1, 2}, {5, 4, 6}},
      {{0, 2}, {1, 3}, {4, 5}, {6, 7}},
      {{0}, {1}, {2}, {3}, {4}},
      {{0, 1}, {2}, {3}, {4}, {5}, {6, 7}},
      {{0}, {1}, {2}, {3}, {4}, {5}, {6}},
      {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}},
      {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}};
  for (size_t run = 0; run < 2 * shapes.size(); ++run) {
    const auto& shape = shapes[run / 2];
    const bool dissemination = run % 2 == 1;
    CAPTURE(run);
    uint32_t world = 0;
    for (const auto& ranks : shape) world += static_cast<uint32_t>(ranks.size());
    const auto leader = static_cast<uint32_t>(random() % world);
    Cluster cluster(shape, leader, 1u << 30, dissemination);
    cluster.keep->set(0.25, 0);
    std::vector<uint64_t> entered(world), left(world);
    constexpr uint64_t kBarriers = 200;
    for (uint64_t tries = 0; tries < 4'000'000; ++tries) {
      if (*std::min_element(left.begin(), left.end()) == kBarriers) break;
      cluster.now += 1 + random() % 100;
      const auto rank = static_cast<uint32_t>(random() % world);
      const auto node = static_cast<uint32_t>(random() % shape.size());
      Meeting& meeting = *cluster.nodes[cluster.node_of[rank]]->meeting;
      if (entered[rank] == left[rank] && entered[rank] < kBarriers) {
        cluster.enter(rank, entered[rank]++);
      } else if (left[rank] < entered[rank] && meeting.released(left[rank])) {
        REQUIRE(*std::min_element(entered.begin(), entered.end()) > left[rank]);
        const bool kept = cluster.keep->keeps(trace_id_of({5, 6}, 3, left[rank]), 0);
        REQUIRE(cluster.kept(cluster.node_of[rank], left[rank]) == kept);
        meeting.leave(left[rank]++);
      }
      if (random() % 2) cluster.deliver(node);
      cluster.step(node, random() % 3 == 0, random() % 3 != 0);
    }
    REQUIRE(*std::min_element(left.begin(), left.end()) == kBarriers);
    const TestNode& leads = *cluster.nodes[cluster.node_of[leader]];
    uint64_t last = 0;
    for (uint32_t rank = 0; rank < world; ++rank) last += leads.stats.stragglers(rank);
    CHECK(last == (dissemination ? 0 : kBarriers));
    for (const Phase phase : {Phase::kArrive, Phase::kLocal, Phase::kNetwork}) {
      CHECK(leads.stats.phase(phase).snapshot().count == kBarriers);
    }
  }
}

TEST_CASE("the leader names exactly the missing ranks, also of a node where some are there") {
  constexpr uint64_t kTimeout = 1'000'000;
  Cluster cluster({{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 0, kTimeout);
  cluster.enter(0, 0);
  for (const uint32_t rank : {2, 3, 4}) cluster.enter(rank, 0);
  for (int i = 0; i < 3; ++i) {
    for (uint32_t n = 0; n < 4; ++n) {
      cluster.step(n);
      cluster.deliver(n);
    }
    cluster.now += kTimeout / 3;
  }
  while (!cluster.net.to_node[0].empty()) cluster.deliver(0);
  CHECK_FALSE(cluster.nodes[0]->delegate->timed_out(1000 + kTimeout));
  CHECK(cluster.nodes[0]->delegate->timed_out(1001 + kTimeout));
  CHECK_FALSE(cluster.nodes[0]->delegate->timed_out(1002 + kTimeout));  // told once
  CHECK(cluster.nodes[0]->delegate->missing() == std::vector<uint32_t>{1, 5, 6, 7});
  CHECK(cluster.nodes[2]->delegate->missing() == std::vector<uint32_t>{5});
  CHECK(cluster.nodes[1]->delegate->missing().empty());
  CHECK_FALSE(cluster.nodes[3]->delegate->timed_out(1u << 31));  // nobody waits there
}

TEST_CASE("a barrier that is slow anywhere is kept on every node, with the last rank") {
  constexpr uint64_t kSlowNs = 50'000, kQuickNs = 49'999;
  struct Case {
    std::vector<std::pair<uint32_t, uint64_t>> entries;  // rank, time since the one before
    bool kept;
  };
  const std::vector<Case> cases = {
      {{{0, 0}, {1, 0}, {2, 0}, {3, kSlowNs}}, true},  // the last of another node
      {{{0, 0}, {1, 0}, {2, 0}, {3, kQuickNs}}, false},
      {{{2, 0}, {3, 0}, {1, 0}, {0, kSlowNs}}, true},  // the leader itself
      {{{2, 0}, {3, 0}, {1, 0}, {0, kQuickNs}}, false},
      {{{2, 0}, {3, kSlowNs - 1}, {1, 0}, {0, 1}}, true},  // the leader's node hears of it late
      {{{2, 0}, {1, kQuickNs - 1}, {3, 0}, {0, 1}}, false},
  };
  Cluster cluster({{0, 1}, {2, 3}}, 0, 1u << 30);
  cluster.keep->set(0, kSlowNs);
  for (uint64_t number = 0; number < cases.size(); ++number) {
    CAPTURE(number);
    for (const auto& [rank, wait_ns] : cases[number].entries) {
      cluster.now += wait_ns;
      cluster.enter(rank, number);
      cluster.settle();
    }
    for (uint32_t n = 0; n < 2; ++n) CHECK(cluster.kept(n, number) == cases[number].kept);
    const Collected& led = cluster.nodes[0]->meeting->stamps(number).collected;
    CHECK(led.last_rank == cases[number].entries.back().first);
    for (uint32_t rank = 0; rank < 4; ++rank) cluster.leave(rank, number);
    cluster.now += 10 * kSlowNs;  // between barriers nobody waits
  }
}

TEST_CASE("who came early to the next barrier has waited there, and not since the last one") {
  Cluster cluster({{0}, {1}}, 0, 1u << 30);
  cluster.keep->set(0, 1000);
  cluster.enter(0, 0);
  cluster.enter(1, 0);
  const auto move = [&cluster](bool leader_settles) {
    for (int i = 0; i < 20; ++i) {
      cluster.step(0, false, leader_settles);
      cluster.deliver(0);
      cluster.step(1);
      cluster.deliver(1);
    }
  };
  move(false);  // node 1 is released, node 0 not yet
  cluster.leave(1, 0);
  cluster.now += 600;
  cluster.enter(1, 1);
  move(false);
  cluster.now += 600;
  move(true);
  CHECK_FALSE(cluster.kept(0, 0));
  cluster.leave(0, 0);
  cluster.now += 400;
  cluster.enter(0, 1);
  cluster.settle();
  CHECK(cluster.kept(0, 1));
  CHECK(cluster.kept(1, 1));
}

TEST_CASE("the bound of a barrier does not start with a rank that is excluded since") {
  Cluster cluster({{0, 1, 2}}, 0, 1000);
  Delegate& delegate = *cluster.nodes[0]->delegate;
  cluster.enter(2, 0);
  cluster.nodes[0]->meeting->exclude(2);
  CHECK_FALSE(delegate.timed_out(cluster.now + 5000));  // nobody waits
  cluster.now += 900;
  cluster.enter(1, 0);
  CHECK_FALSE(delegate.timed_out(cluster.now + 1000));
  CHECK(delegate.timed_out(cluster.now + 1001));
}

TEST_CASE("a barrier is recorded once, also where who would leave it last is lost") {
  Cluster cluster({{0, 1}, {2}}, 0, 1u << 30);
  cluster.keep->set(1, 0);
  const auto recorded = [&cluster](uint32_t n) {
    const BarrierStats& stats = cluster.nodes[n]->stats;
    return std::pair{stats.last_barriers().take(0, 10).barriers.size(),
                     stats.kept().take(0, 10).barriers.size()};
  };
  for (const uint32_t rank : {0u, 1u, 2u}) cluster.enter(rank, 0);
  cluster.settle();
  CHECK_FALSE(cluster.nodes[0]->meeting->leave(0));  // rank 0; rank 1 is lost before it leaves
  cluster.leave(2, 0);
  cluster.nodes[0]->meeting->exclude(1);
  cluster.settle();
  CHECK(recorded(0) == std::pair<size_t, size_t>{0, 0});
  for (const uint32_t rank : {0u, 2u}) cluster.enter(rank, 1);
  cluster.settle();
  REQUIRE(recorded(0) == std::pair<size_t, size_t>{1, 1});
  CHECK(cluster.nodes[0]->stats.kept().take(0, 1).barriers[0].number == 0);
  CHECK(cluster.nodes[0]->meeting->leave(1));  // the last one, which records it itself
  cluster.leave(2, 1);
  for (const uint32_t rank : {0u, 2u}) cluster.enter(rank, 2);
  cluster.nodes[0]->meeting->exclude(0);  // it entered, but nobody is left to leave
  cluster.settle();
  REQUIRE(recorded(0) == std::pair<size_t, size_t>{1, 2});
  CHECK(cluster.nodes[0]->stats.kept().take(1, 1).barriers[0].number == 2);
}

TEST_CASE("a leader that is alone and without ranks goes through no barriers") {
  Cluster cluster({{0, 1}, {2}}, 0, 1u << 30);
  for (const uint32_t position : {0u, 1u}) cluster.nodes[0]->meeting->exclude(position);
  cluster.nodes[0]->delegate->lose_node(1, cluster.now);
  cluster.settle();
  CHECK_FALSE(cluster.step(0));
  CHECK(cluster.nodes[0]->delegate->number() == 0);
}

TEST_CASE("by dissemination too the leader names exactly the missing ranks, and asks for them") {
  constexpr uint64_t kTimeout = 1'000'000;
  // With one of the leader's ranks there, and with none of them.
  for (const bool begun : {true, false}) {
    CAPTURE(begun);
    Cluster cluster({{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 0, kTimeout, true);
    if (begun) cluster.enter(0, 0);
    for (const uint32_t rank : {2, 3, 4}) cluster.enter(rank, 0);
    cluster.settle();
    cluster.now += kTimeout / 2;
    cluster.settle();
    cluster.now += kTimeout / 4;
    cluster.enter(5, 0);  // late, but here
    cluster.settle();
    Delegate& leader = *cluster.nodes[0]->delegate;
    CHECK(leader.timed_out(cluster.now + kTimeout));
    std::vector<uint32_t> missing{0, 1, 6, 7};
    if (begun) missing.erase(missing.begin());
    CHECK(leader.missing() == missing);
    CHECK(cluster.nodes[1]->delegate->missing().empty());
    CHECK_FALSE(cluster.nodes[3]->delegate->timed_out(1u << 31));  // nobody waits there
  }
}

TEST_CASE("by dissemination a barrier that was slow at one node is kept by all with the next one") {
  constexpr uint64_t kSlowNs = 50'000;
  Cluster cluster({{0}, {1}, {2}, {3}, {4}}, 0, 1u << 30, true);
  cluster.keep->set(0, kSlowNs);
  const auto kept = [&cluster](uint32_t n) {
    std::vector<uint64_t> out;
    for (const BarrierTimes& each : cluster.nodes[n]->stats.kept().take(0, 10).barriers)
      out.push_back(each.number);
    return out;
  };
  for (uint64_t number = 0; number < 4; ++number) {
    for (uint32_t rank = 0; rank < 5; ++rank) {
      if (number == 1 && rank == 4) cluster.now += kSlowNs - 2;  // slow for the first one only
      if (rank == 1) cluster.now += 2;
      cluster.enter(rank, number);
    }
    cluster.settle();
    for (uint32_t rank = 0; rank < 5; ++rank) {
      Meeting& meeting = *cluster.nodes[rank]->meeting;
      REQUIRE(meeting.released(number));
      CHECK(meeting.leave(number));
      cluster.nodes[rank]->stats.finished(
          times_of(meeting.stamps(number), {5, 6}, 3, number, rank == 0, cluster.now));
    }
    const auto expected = number < 2 ? std::vector<uint64_t>{} : std::vector<uint64_t>{1};
    for (uint32_t n = 0; n < 5; ++n) CHECK(kept(n) == expected);
    cluster.now += 10 * kSlowNs;
  }
  CHECK(cluster.nodes[2]->stats.kept().take(0, 1).barriers[0].alone);
}

TEST_CASE("rounds that do not belong here are refused, or count for nothing") {
  Cluster cluster({{0}, {1}, {2}, {3}, {4}}, 0, 1u << 30, true);
  Delegate& delegate = *cluster.nodes[0]->delegate;
  const auto round = [&](uint16_t source, uint64_t number, Round what,
                         RecordKind kind = RecordKind::kRound) {
    ControlRecord record;
    record.kind = kind;
    record.source = source;
    record.value = number;
    record.extra = pack_round(what);
    return delegate.on_record(record, 1);
  };
  CHECK(round(3, 0, {.round = 3}) != nullptr);  // three rounds are enough for five
  CHECK(round(3, 0, {.round = 0}) != nullptr);  // node 4's
  CHECK(round(0, 0, {.round = 0}) != nullptr);  // its own
  CHECK(round(9, 0, {.round = 0}) != nullptr);  // no rank
  CHECK(round(4, 0, {.round = 0}) == nullptr);
  CHECK(round(4, 0, {.round = 0}) != nullptr);  // twice
  CHECK(round(4, 0, {}, RecordKind::kArrive) != nullptr);
  CHECK(round(1, 0, {}, RecordKind::kRelease) != nullptr);
  CHECK(round(1, 0, {}, RecordKind::kAsk) != nullptr);        // this is the leader
  CHECK(round(4, 7, {.round = 0}) == nullptr);                // of a barrier that cannot be
  CHECK(round(1, 0, {.round = 0, .over = true}) == nullptr);  // not entered: it cannot be over
  cluster.enter(0, 0);
  for (int i = 0; i < 5; ++i) cluster.step(0);
  CHECK_FALSE(cluster.nodes[0]->meeting->released(0));
  Cluster led({{0}, {1}}, 0, 1u << 30);
  ControlRecord record;
  record.kind = RecordKind::kRound;
  record.source = 1;
  CHECK(led.nodes[0]->delegate->on_record(record, 1) != nullptr);
}

TEST_CASE("records that do not belong here are refused") {
  Cluster cluster({{0, 1}, {2, 3}}, 0, 1u << 30);
  const auto record = [](RecordKind kind, uint16_t source, uint64_t number, uint64_t extra) {
    ControlRecord out;
    out.kind = kind;
    out.source = source;
    out.value = number;
    out.extra = extra;
    return out;
  };
  Delegate& leader = *cluster.nodes[0]->delegate;
  Delegate& other = *cluster.nodes[1]->delegate;
  CHECK(leader.on_record(record(RecordKind::kArrive, 2, 1, 2), 1) != nullptr);   // number
  CHECK(leader.on_record(record(RecordKind::kArrive, 3, 0, 3), 1) != nullptr);   // no delegate
  CHECK(leader.on_record(record(RecordKind::kArrive, 0, 0, 0), 1) != nullptr);   // its own node
  CHECK(leader.on_record(record(RecordKind::kArrive, 99, 0, 0), 1) != nullptr);  // no rank
  CHECK(leader.on_record(record(RecordKind::kArrive, 2, 0, 1), 1) != nullptr);   // last rank
  CHECK(leader.on_record(record(RecordKind::kRelease, 2, 0, 0), 1) != nullptr);
  CHECK(leader.on_record(record(RecordKind::kArrive, 2, 0, 3), 1) == nullptr);
  CHECK(leader.on_record(record(RecordKind::kArrive, 2, 0, 3), 1) != nullptr);  // twice
  CHECK(leader.on_record(record(RecordKind::kArrive, 2, 1, 3), 1) != nullptr);  // not released yet
  CHECK(other.on_record(record(RecordKind::kArrive, 0, 0, 0), 1) != nullptr);
  CHECK(other.on_record(record(RecordKind::kRelease, 0, 0, 0), 1) !=
        nullptr);  // before its arrival
  cluster.enter(2, 0);
  cluster.enter(3, 0);
  for (int i = 0; i < 3; ++i) cluster.step(1);
  CHECK(other.on_record(record(RecordKind::kRelease, 0, 0, 2), 1) != nullptr);  // neither 0 nor 1
  CHECK(other.on_record(record(RecordKind::kRelease, 0, 0, 1), 1) == nullptr);
}

TEST_CASE("ranks on threads meet without losing a barrier") {
  constexpr uint32_t kMembers = 3;
  constexpr uint64_t kBarriers = 300;
  Meeting meeting(kMembers);
  std::atomic<uint64_t> inside{0}, last{0};
  const auto rank = [&](uint32_t position) {
    for (uint64_t n = 0; n < kBarriers; ++n) {
      inside.fetch_add(1);
      meeting.announce(n, position, n + 1);
      meeting.enter(n, position, n + 1);
      while (!meeting.released(n)) {
        if (position == 0 && meeting.full(n)) meeting.release(n, n + 1);
        std::this_thread::yield();
      }
      CHECK(inside.load() >= (n + 1) * kMembers);
      if (meeting.leave(n)) last.fetch_add(1);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kMembers; ++i) threads.emplace_back(rank, i);
  for (std::thread& thread : threads) thread.join();
  CHECK(last.load() == kBarriers);
}
