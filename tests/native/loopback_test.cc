// Whole sessions of one node with pods on threads: the data, the signals and the end of it, for the
// sanitizers.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstdio>
#include <random>
#include <thread>

#include "core.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kLimitNs = 60'000'000'000;
constexpr uint64_t kBytes = 65536;
constexpr uint32_t kRings = 3;
constexpr uint32_t kDepth = 16;

struct Pod {
  std::shared_ptr<Session> session;
  std::vector<Producer> rings;
  FileDescriptor region_fd;

  std::byte* memory() const { return session->regions()[0].memory.data(); }
  AbortWords aborts() const {
    return {&session->segments().pod_header()->abort, &session->segments().header()->abort};
  }
  // False when the epoch failed or the bound passed.
  bool push(uint32_t ring, const Slot& slot) {
    const uint64_t begin = platform::clock_ns();
    for (uint32_t look = 0; !rings[ring].try_push(&slot, 1); ++look) {
      if (aborts().set() || platform::clock_ns() - begin > kLimitNs) return false;
      platform::pause(look);
    }
    return true;
  }
  bool wait(uint32_t ring, uint64_t ticket) {
    const uint64_t* completed = &session->segments().counters(ring)->completed;
    return wait_at_least(completed, ticket + 1, aborts(), kLimitNs) == Waited::kDone;
  }
  bool run(uint32_t ring, const Slot& slot) {
    return push(ring, slot) && wait(ring, rings[ring].head - 1);
  }
};

struct Fixture {
  Core core{CoreSettings{}};
  std::vector<Pod> pods;

  explicit Fixture(uint32_t world, uint32_t proxies) {
    std::vector<std::shared_ptr<Session>> sessions;
    std::vector<uint32_t> ranks;
    for (uint32_t rank = 0; rank < world; ++rank) {
      Pod pod;
      pod.session = core.open_session(
          {1, {rank, world, kRings, kDepth, 4}, std::vector<int>(proxies, -1), kBytes});
      pod.region_fd = FileDescriptor(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      const std::vector<std::byte> zeros(kBytes);
      REQUIRE(::write(pod.region_fd.get(), zeros.data(), kBytes) == ssize_t{kBytes});
      pod.session->register_memfd(pod.region_fd.get(), kBytes);
      for (uint32_t ring = 0; ring < kRings; ++ring) {
        const Segments& segments = pod.session->segments();
        pod.rings.push_back({const_cast<Slot*>(segments.slots(ring)),
                             &segments.counters(ring)->tail, 0, 0, kDepth});
      }
      sessions.push_back(pod.session);
      ranks.push_back(rank);
      pods.push_back(std::move(pod));
    }
    core.open_epoch({1, 1, 0, kLimitNs, {ranks}}, sessions, {});
    core.start_epoch(1);
  }

  void close() {
    core.close_epoch(1);
    for (Pod& pod : pods) pod.session->close(kLimitNs);
    core.close();
  }
};

Slot write_of(uint32_t rank, uint32_t source, uint32_t destination, uint32_t units) {
  Slot slot{};
  REQUIRE(pack_write({rank, source, destination, units, 1, 1}, slot));
  return slot;
}

}  // namespace

TEST_CASE("what a rank wrote before its signal is there when the signal is, round after round") {
  Fixture at(2, 2);
  constexpr uint64_t kRounds = 100;
  const auto pod = [&](uint32_t own) {
    Pod& me = at.pods[own];
    const uint32_t peer = 1 - own;
    for (uint64_t round = 1; round <= kRounds; ++round) {
      for (uint32_t ring = 0; ring < kRings; ++ring) {
        auto* words = reinterpret_cast<uint64_t*>(me.memory() + ring * 1024);
        for (uint64_t i = 0; i < 128; ++i) words[i] = round * 1000 + i + own;
        if (!me.push(ring, write_of(peer, ring * 64, 1024 + ring * 64, 64))) return false;
      }
      for (uint32_t ring = 0; ring < kRings; ++ring) {
        const uint64_t* word = me.session->segments().signal(peer, ring, 1);
        if (wait_at_least(word, round, me.aborts(), kLimitNs) != Waited::kDone) return false;
        const auto* words = reinterpret_cast<const uint64_t*>(me.memory() + 16384 + ring * 1024);
        for (uint64_t i = 0; i < 128; ++i) {
          if (words[i] != round * 1000 + i + peer) return false;
        }
      }
      for (uint32_t ring = 0; ring < kRings; ++ring) {
        if (!me.run(ring, pack_drain(me.rings[ring].head))) return false;
      }
      if (!me.run(0, pack_barrier())) return false;
    }
    return true;
  };
  bool other = false;
  std::thread thread([&] { other = pod(1); });
  const bool own = pod(0);
  thread.join();
  CHECK(own);
  CHECK(other);
  const auto stats = at.core.barrier_stats(1);
  at.close();  // a barrier's times are written once it has let go
  CHECK(stats->phase(Phase::kTotal).snapshot().count == kRounds);
}

TEST_CASE(
    "a session that closes while others write to it: later writes are refused, nothing is "
    "touched") {
  for (int i = 0; i < 10; ++i) {
    Fixture at(3, 1);
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      while (!stop.load()) {
        if (!at.pods[0].push(1, write_of(1, 0, 0, 4096))) return;
      }
    });
    while (at.pods[0].session->rings()[1]->retired() < 20) std::this_thread::yield();
    at.core.rank_left(1, 1);
    at.pods[1].session->close(kLimitNs);
    const uint64_t after = at.pods[0].session->rings()[1]->taken();
    while (at.pods[0].session->rings()[1]->retired() < after + 20) std::this_thread::yield();
    stop = true;
    writer.join();
    const RingCount& count = at.pods[0].session->rings()[1]->count();
    CHECK(count.refused[static_cast<size_t>(Refusal::kRankLeft)].get() >= 19);
    CHECK(at.pods[0].run(2, write_of(2, 0, 0, 1)));
    at.close();
  }
}

TEST_CASE("failing an epoch ends its waits and its proxies") {
  Fixture at(2, 3);
  bool done = true;
  std::thread waiter([&] { done = at.pods[0].run(0, pack_barrier()); });
  at.core.fail_epoch(1, "the test says so");
  at.core.fail_epoch(1, "again");
  waiter.join();
  CHECK_FALSE(done);
  CHECK(at.pods[1].aborts().set());
  CHECK_FALSE(at.pods[0].run(1, write_of(1, 0, 0, 1)));
  CHECK(at.core.failure(1) == "");
  at.close();
}
