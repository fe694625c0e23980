// Drives the two ends of a ring: half-visible slots step by step, then a producer and a consumer
// thread over many laps. Built with sanitizers and run by test_fifo.py; the argument is a seed.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

#include "epfabric/fifo.h"

using namespace epfabric;

namespace {

constexpr uint32_t kDepth = 16;
constexpr uint64_t kCommands = 60000;
// Just below the wrap of 32 bits, at the start of an even lap as at ticket 0.
constexpr uint64_t kFirst = (uint64_t{1} << 32) - 2 * kDepth * 100;
constexpr uint64_t kPatience = 60'000'000'000u;

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

void half_visible_slots_are_not_taken() {
  Slot slots[kDepth] = {};
  Consumer consumer{slots, 0, kDepth};
  Slot out{};
  check(!consumer.peek(0, out), "an empty ring gave a command");
  for (const bool low_first : {true, false}) {
    const uint64_t lap = lap_of(consumer.next, kDepth);
    Slot& slot = slots[consumer.next % kDepth];
    (low_first ? slot.lo : slot.hi) = 7 | lap;
    check(!consumer.peek(0, out), "half a command was taken");
    (low_first ? slot.hi : slot.lo) = 9 | lap;
    check(consumer.peek(0, out), "a whole command was not taken");
    check(((out.lo | out.hi) & kLapBit) == 0, "the lap bit came along");
    ++consumer.next;
  }
}

void a_full_ring_takes_all_of_a_batch_or_nothing() {
  Slot slots[kDepth] = {};
  uint64_t tail = 0;
  Producer producer{slots, &tail, 0, 0, kDepth};
  const Slot batch[kMaxBatch] = {};
  check(producer.try_push(batch, 8) && producer.try_push(batch, 5), "room was not used");
  check(!producer.try_push(batch, 4) && producer.head == 13, "a batch without room got in");
  check(producer.try_push(batch, 3), "the last slots were not used");
  check(!producer.try_push(batch, 1), "a full ring took a command");
  tail = 1;
  check(producer.try_push(batch, 1) && producer.head == 17, "a freed slot was not used");
}

struct Shared {
  Slot slots[kDepth] = {};
  uint64_t payload[kDepth] = {};  // plain memory: only the ring's order protects it
  alignas(64) uint64_t tail = kFirst;
  alignas(64) uint64_t completed = kFirst;
  alignas(64) uint64_t abort = 0;
};

void produce(Shared& shared, uint32_t seed) {
  std::mt19937 random(seed);
  Producer producer{shared.slots, &shared.tail, kFirst, kFirst, kDepth};
  const AbortWords aborts{&shared.abort, &shared.abort};
  while (producer.head < kFirst + kCommands) {
    const uint64_t left = kFirst + kCommands - producer.head;
    const uint32_t count = static_cast<uint32_t>(std::min<uint64_t>(left, random() % 8 + 1));
    const uint64_t reused =
        producer.head + count > kFirst + kDepth ? producer.head + count - kDepth : kFirst;
    const Waited waited = wait_at_least(&shared.completed, reused, aborts, kPatience);
    if (waited != Waited::kDone) return;
    Slot batch[kMaxBatch];
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t ticket = producer.head + i;
      shared.payload[ticket % kDepth] = ticket * 3;
      batch[i] = Slot{ticket & ~kLapBit, ~ticket & ~kLapBit};
    }
    check(producer.try_push(batch, count), "there was room and the push failed");
  }
}

void consume(Shared& shared) {
  Consumer consumer{shared.slots, kFirst, kDepth};
  const uint64_t begin = platform::clock_ns();
  for (uint32_t look = 0; consumer.next < kFirst + kCommands; ++look) {
    Slot slot{};
    if (!consumer.peek(0, slot)) {
      check(platform::clock_ns() - begin < kPatience, "the producer stopped");
      platform::pause(look);
      continue;
    }
    look = 0;
    check(slot.lo == consumer.next && slot.hi == (~consumer.next & ~kLapBit), "wrong command");
    check(shared.payload[consumer.next % kDepth] == consumer.next * 3, "payload behind command");
    ++consumer.next;
    platform::store_release(&shared.tail, consumer.next);
    platform::store_release(&shared.completed, consumer.next);
  }
}

}  // namespace

int main(int count, char** arguments) {
  const auto seed = static_cast<uint32_t>(count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 1);
  half_visible_slots_are_not_taken();
  a_full_ring_takes_all_of_a_batch_or_nothing();
  const auto shared = std::make_unique<Shared>();
  std::thread producer([&] { produce(*shared, seed); });
  consume(*shared);
  producer.join();
  return 0;
}
