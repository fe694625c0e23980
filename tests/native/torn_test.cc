// A pod that overwrites its slots while they are read, laps and halves alike: whatever the proxies
// make of it was checked, is counted once, and stays in the group. For the sanitizers.
#include <doctest/doctest.h>
#include <fcntl.h>

#include <algorithm>
#include <chrono>
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
constexpr uint32_t kDepth = 32;
constexpr uint32_t kLaps = 10;

std::shared_ptr<Session> open(Core& core, uint64_t group, uint32_t rank, uint32_t world) {
  // One proxy: two of them would copy over each other, which is the pod's affair alone.
  const auto session = core.open_session({group, {rank, world, kRings, kDepth, 4}, {-1}, kBytes});
  const FileDescriptor fd(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<std::byte> ones(kBytes, std::byte{1});
  REQUIRE(::write(fd.get(), ones.data(), kBytes) == ssize_t{kBytes});
  session->register_memfd(fd.get(), kBytes);
  return session;
}

// A valid WRITE, SIGNAL or slot of a CAS with a bit flipped (often none that matters), or noise; no
// BARRIER, and no ADD, which would change memory.
Slot hostile(std::mt19937_64& random) {
  Slot slot{random(), random()};
  const auto draw = [&random](uint64_t below) { return static_cast<uint32_t>(random() % below); };
  const uint32_t kind = draw(5);
  if (kind < 2) pack_write({draw(2), draw(4096), draw(4096), 1, draw(4), 1 + draw(9)}, slot);
  if (kind == 2) pack_signal(draw(2), draw(4), 1 + draw(9), slot);
  if (kind == 3) pack_atomic(Op::kCas, draw(2), draw(8192), 0, slot);  // which no word holds
  if (kind == 3 && draw(2)) pack_atomic(Op::kCasSwap, 0, 0, draw(9), slot);
  uint64_t& half = draw(2) ? slot.lo : slot.hi;
  half ^= uint64_t{1} << draw(64);
  if (op_of(slot.lo) == Op::kBarrier || op_of(slot.lo) == Op::kAdd) slot.lo = 0;
  slot.lo ^= random() & kLapBit;
  slot.hi ^= random() & kLapBit;
  return slot;
}

}  // namespace

TEST_CASE("slots that change while they are read: only checked commands run, each counts once") {
  Core core{CoreSettings{}};
  const auto seed = std::random_device{}();
  std::printf("seed %u\n", seed);
  const auto bystander = open(core, 2, 0, 1);
  const std::vector<std::shared_ptr<Session>> group{open(core, 1, 0, 2), open(core, 1, 1, 2)};
  core.open_epoch({1, 1, 0, kLimitNs, {{0, 1}}}, group, {});
  core.start_epoch(1);

  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (uint32_t number = 0; number < 2; ++number) {
    writers.emplace_back([&, number] {
      std::mt19937_64 random(seed + number);
      while (!stop.load(std::memory_order_relaxed)) {
        const uint64_t at = random();
        const Slot slot = hostile(random);
        auto* to = const_cast<Slot*>(group[0]->segments().slots(at % kRings)) + (at >> 8) % kDepth;
        platform::store_relaxed_pair(&to->lo, slot.lo, slot.hi);
      }
    });
  }
  const uint64_t begin = platform::clock_ns();
  for (const auto& ring : group[0]->rings()) {
    while (ring->taken() < kLaps * kDepth && platform::clock_ns() - begin < kLimitNs)
      std::this_thread::yield();
  }
  stop.store(true, std::memory_order_relaxed);
  for (auto& writer : writers) writer.join();
  // Whatever is whole is still taken, until nothing moves any more.
  const auto taken = [&group] {
    uint64_t sum = 0;
    for (const auto& ring : group[0]->rings()) sum += ring->taken();
    return sum;
  };
  for (uint64_t before = 0; before != taken();) {
    before = taken();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(core.failure(1) == "");
  core.close_epoch(1);  // the proxies stand still: the counts are final

  for (const auto& ring : group[0]->rings()) {
    const RingCount& count = ring->count();
    uint64_t slots = count.writes.get() + count.signals.get() + count.drains.get() +
                     count.adds.get() + 2 * count.swaps.get();
    CHECK(count.writes.get() > 0);
    CHECK(count.signals.get() > 0);
    CHECK(count.adds.get() + count.barriers.get() == 0);
    for (const Count& refused : count.refused_slots) slots += refused.get();
    CHECK(ring->taken() >= kLaps * kDepth);
    CHECK(slots == ring->taken());
    CHECK(slots == ring->retired());
  }
  for (const auto& session : {group[0], group[1], bystander}) {
    const std::byte* memory = session->regions()[0].memory.data();
    CHECK(std::all_of(memory, memory + kBytes, [](std::byte b) { return b == std::byte{1}; }));
  }
  for (const auto& session : {group[0], group[1], bystander}) session->close(kLimitNs);
  core.close();
}
