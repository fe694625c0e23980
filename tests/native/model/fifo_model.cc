// One ring from both ends, as memory_model.h runs it: a producer (fifo.h) that stores payload and
// pushes, and the proxy's end (ring.h) that takes, reads the payload late and retires.
#include "modelled.h"
// Behind it: what is under test.
#include "ring.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kDepth = 2;
constexpr uint32_t kPayloads = 3;  // more than slots: a slot is reused before its payload is
constexpr uint64_t kForEver = ~uint64_t{0};

struct Memory {
  Slot slots[kDepth] = {};
  uint64_t payload[kPayloads] = {};
  RingCounters counters{};
  uint64_t pushed = 0;
  uint64_t quiet = 0;  // abort words that nobody sets

  explicit Memory(model::Run& run) {
    for (uint32_t i = 0; i < kDepth; ++i) {
      run.bind("slot " + std::to_string(i) + " lo", &slots[i].lo);
      run.bind("slot " + std::to_string(i) + " hi", &slots[i].hi);
    }
    for (uint32_t i = 0; i < kPayloads; ++i) run.bind("payload " + std::to_string(i), &payload[i]);
    run.bind("tail", &counters.tail);
    run.bind("completed", &counters.completed);
    run.bind("pushed", &pushed);
  }
};

// A batch waits for its payloads to be free and for its slots to be. A counter that is ahead of
// what was pushed is left out: that store of the proxy would depend on a push that depends on it.
void produce(model::Run& run, const std::vector<uint32_t>& batches) {
  Memory at(run);
  Producer producer{at.slots, &at.counters.tail, 0, 0, kDepth};
  for (const uint32_t count : batches) {
    Slot batch[kDepth];
    for (uint32_t i = 0; i < count; ++i) {
      const uint64_t ticket = producer.head + i;
      const auto unit = static_cast<uint32_t>(ticket) + 1;
      if (ticket >= kPayloads) {
        wait_at_least(&at.counters.completed, ticket - kPayloads + 1, {&at.quiet, &at.quiet},
                      kForEver);
        run.assume(run.last() <= producer.head);
      }
      __atomic_store_n(&at.payload[ticket % kPayloads], ticket + 1, __ATOMIC_RELAXED);
      pack_write({0, unit, unit, 1, 0, 0}, batch[i]);
    }
    while (!producer.try_push(batch, count)) {
    }
    run.assume(producer.cached_tail <= producer.head);
    platform::store_release(&at.pushed, producer.head);
  }
}

void consume(model::Run& run, uint64_t commands) {
  Memory at(run);
  const std::array<Extent, 1> own{{{0, 1024}}};
  const std::array<std::span<const Extent>, 1> regions{own};
  std::array<std::atomic<uint8_t>, 1> left{};
  std::atomic<uint32_t> departed{0};
  const SessionView view{1, 1, own, regions, left, &departed};
  Ring ring(0, at.slots, &at.counters, nullptr, kDepth);
  uint32_t failed = 0;
  for (uint64_t ticket = 0; ticket < commands; ++ticket) {
    uint32_t budget = 1;
    bool taken = ring.take(view, budget);
    if (!taken) {
      // One that is known to be pushed has to be there; before, this run could only wait. Once in
      // a run is enough.
      run.assume(++failed == 1 && platform::load_acquire(&at.pushed) > ticket);
      taken = ring.take(view, budget);
    }
    run.expect(ring.taken() == ticket,
               "ticket " + std::to_string(ticket) + " was taken with a half of before");
    run.expect(taken, "ticket " + std::to_string(ticket) + " was pushed and is not there");
    if (!taken) return;
    const Write& write = ring.held().command.write;
    const uint64_t first = write.source - 1, second = write.destination - 1;
    run.expect(first == ticket && second == ticket,
               "ticket " + std::to_string(ticket) + " was taken with halves of " +
                   std::to_string(first) + " and " + std::to_string(second));
    ring.add_part();
    ring.finish();
    ring.retire();
    const uint64_t payload = __atomic_load_n(&at.payload[ticket % kPayloads], __ATOMIC_RELAXED);
    run.expect(payload > ticket, "ticket " + std::to_string(ticket) + " moved an older payload");
    run.expect(payload <= ticket + 1,
               "ticket " + std::to_string(ticket) + " moved a newer payload");
    ring.part_done(ticket);
    ring.retire();
  }
}

}  // namespace

int main() {
  const std::vector<std::vector<uint32_t>> trials{{1},    {2},       {1, 1, 1},   {2, 1},
                                                  {2, 2}, {1, 2, 1}, {1, 1, 1, 1}};
  for (const std::vector<uint32_t>& batches : trials) {
    model::World world;
    uint64_t commands = 0;
    for (const uint32_t count : batches) commands += count;
    const int pod = world.thread("producer", [&](model::Run& run) { produce(run, batches); });
    const int proxy = world.thread("proxy", [&](model::Run& run) { consume(run, commands); });
    for (uint32_t i = 0; i < kDepth; ++i) {
      world.location("slot " + std::to_string(i) + " lo", pod);
      world.location("slot " + std::to_string(i) + " hi", pod);
    }
    for (uint32_t i = 0; i < kPayloads; ++i) world.location("payload " + std::to_string(i), pod);
    world.location("pushed", pod);
    std::vector<uint64_t> counts;
    for (uint64_t i = 1; i <= commands; ++i) counts.push_back(i);
    world.location("tail", proxy, counts);
    world.location("completed", proxy, counts);
    std::string name = "fifo";
    for (const uint32_t count : batches) name += " " + std::to_string(count);
    if (!world.report(name)) return 1;
  }
  return 0;
}
