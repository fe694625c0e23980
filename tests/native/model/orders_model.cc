// The orders beside the slots that a pod or another proxy relies on, as memory_model.h runs them.
#include "modelled.h"
// Behind it: what is under test.
#include "meeting.h"
#include "ring.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kDepth = 2;
constexpr uint64_t kForEver = ~uint64_t{0};

// One ring between a pod and its proxy, and a word that the command's work changes.
struct Memory {
  Slot slots[2][kDepth] = {};  // by ring
  RingCounters counters{};
  uint64_t data = 0;
  uint64_t quiet = 0;  // abort words that nobody sets
  std::array<Extent, 1> own{{{0, 1024}}};
  std::array<std::span<const Extent>, 1> regions{own};
  std::array<std::atomic<uint8_t>, 1> left{};
  std::atomic<uint32_t> departed{0};
  SessionView view{1, 1, own, regions, left, &departed};

  AbortWords aborts() const { return {&quiet, &quiet}; }
  Producer producer(uint32_t ring) { return {slots[ring], &counters.tail, 0, 0, kDepth}; }
  bool take(Ring& ring) const {
    uint32_t budget = 4;
    return ring.take(view, budget);
  }
  void bind_slots(model::Run& run) const {
    for (uint32_t ring = 0; ring < 2; ++ring) {
      const std::string name = "ring " + std::to_string(ring);
      run.bind(name + " lo", &slots[ring][0].lo);
      run.bind(name + " hi", &slots[ring][0].hi);
    }
    run.bind("data", &data);
  }
};

Slot write_command(uint32_t destination) {
  Slot slot{};
  pack_write({0, 0, destination, 1, 0, 0}, slot);
  return slot;
}

// The pod looks at `refused`, after its ticket completed or at any time.
bool refusals(bool after_completed) {
  const auto bind = [](model::Run& run, const Memory& at) {
    run.bind("slot lo", &at.slots[0][0].lo);
    run.bind("slot hi", &at.slots[0][0].hi);
    run.bind("completed", &at.counters.completed);
    run.bind("refused", &at.counters.refused);
    run.bind("ticket", &at.counters.last_refused_ticket);
    run.bind("reason", &at.counters.last_refused_reason);
  };
  model::World world;
  const int proxy = world.thread("proxy", [&](model::Run& run) {
    Memory at;
    bind(run, at);
    Ring ring(0, at.slots[0], &at.counters, nullptr, kDepth);
    run.assume(!at.take(ring) && ring.taken() == 1);
    ring.retire();
  });
  const int pod = world.thread("pod", [&](model::Run& run) {
    Memory at;
    bind(run, at);
    const Slot bad = write_command(4096);
    at.producer(0).try_push(&bad, 1);
    if (after_completed) wait_at_least(&at.counters.completed, 1, at.aborts(), kForEver);
    const uint64_t refused = platform::load_acquire(&at.counters.refused);
    if (after_completed) run.expect(refused == 1, "a refusal is not there with its completion");
    run.assume(refused == 1);
    const uint64_t reason = platform::load_relaxed(&at.counters.last_refused_reason);
    run.expect(reason == static_cast<uint64_t>(Refusal::kDestinationOutOfRegion),
               "a refusal without its reason");
  });
  const Slot bad = write_command(4096);
  world.location("slot lo", pod, {bad.lo | kLapBit});
  world.location("slot hi", pod, {bad.hi | kLapBit});
  for (const char* name : {"completed", "refused", "ticket", "reason"}) world.location(name, proxy);
  return world.report(after_completed ? "refusal after completion" : "refusal at any time");
}

// A signal word: the payload before it, for whoever waits for it.
bool signals() {
  model::World world;
  const auto bind = [](model::Run& run, const Memory& at) {
    run.bind("data", &at.data);
    run.bind("signal", &at.counters.refused);
  };
  const int proxy = world.thread("proxy", [&](model::Run& run) {
    Memory at;
    bind(run, at);
    __atomic_store_n(&at.data, 1, __ATOMIC_RELAXED);
    platform::store_release(&at.counters.refused, 1);
  });
  world.thread("reader", [&](model::Run& run) {
    Memory at;
    bind(run, at);
    wait_at_least(&at.counters.refused, 1, at.aborts(), kForEver);
    run.expect(__atomic_load_n(&at.data, __ATOMIC_RELAXED) == 1, "a signal before its payload");
  });
  world.location("data", proxy);
  world.location("signal", proxy);
  return world.report("signal");
}

// A WRITE on ring 1, then a BARRIER on ring 0: proxy 0 enters only when proxy 1's work is done.
bool quiet_rings() {
  model::World world;
  const int pod = world.thread("pod", [&](model::Run& run) {
    Memory at;
    at.bind_slots(run);
    const Slot write = write_command(0), barrier = pack_barrier();
    at.producer(1).try_push(&write, 1);
    at.producer(0).try_push(&barrier, 1);
  });
  const auto bind = [](model::Run& run, const Memory& at, const Ring& ring) {
    at.bind_slots(run);
    run.bind("taken", ring.taken_.word());
    run.bind("retired", ring.retired_.word());
  };
  const int other = world.thread("proxy 1", [&](model::Run& run) {
    Memory at;
    Ring ring(1, at.slots[1], &at.counters, nullptr, kDepth);
    bind(run, at, ring);
    run.assume(at.take(ring));
    ring.finish();
    __atomic_store_n(&at.data, 1, __ATOMIC_RELAXED);
    ring.retire();
  });
  world.thread("proxy 0", [&](model::Run& run) {
    Memory at;
    Ring own(0, at.slots[0], &at.counters, nullptr, kDepth);
    const Ring ring(1, at.slots[1], &at.counters, nullptr, kDepth);
    bind(run, at, ring);
    run.assume(at.take(own) && ring.idle());
    run.expect(__atomic_load_n(&at.data, __ATOMIC_RELAXED) == 1,
               "a barrier was entered before a write was done");
  });
  for (const char* name : {"ring 0 lo", "ring 0 hi", "ring 1 lo", "ring 1 hi"})
    world.location(name, pod);
  for (const char* name : {"data", "taken", "retired"}) world.location(name, other);
  return world.report("quiet rings");
}

// Two ranks and their node's delegate through two barriers: who leaves one reads what the other
// wrote before it.
bool meeting() {
  model::World world;
  struct Shared {
    Meeting meeting{2};
    uint64_t data[2] = {};
    explicit Shared(model::Run& run) {
      for (uint32_t i = 0; i < 2; ++i) {
        run.bind("entered " + std::to_string(i), meeting.seats_[i].entered.word());
        run.bind("data " + std::to_string(i), &data[i]);
      }
      run.bind("released", meeting.released_.word());
    }
  };
  const std::vector<uint64_t> numbers{1, 2};
  for (uint32_t own = 0; own < 2; ++own) {
    world.thread("rank " + std::to_string(own), [own](model::Run& run) {
      Shared at(run);
      for (uint64_t number = 0; number < 2; ++number) {
        __atomic_store_n(&at.data[own], number + 1, __ATOMIC_RELAXED);
        at.meeting.announce(number, own, 1);
        at.meeting.enter(number, own, 1);
        run.assume(at.meeting.released(number));
        const uint64_t other = __atomic_load_n(&at.data[1 - own], __ATOMIC_RELAXED);
        run.expect(other > number, "what was written before a barrier is not there after it");
        run.expect(other <= number + 2, "what was written after the next barrier is there");
      }
    });
    world.location("entered " + std::to_string(own), static_cast<int>(own), numbers);
    world.location("data " + std::to_string(own), static_cast<int>(own), numbers);
  }
  const int delegate = world.thread("delegate", [](model::Run& run) {
    Shared at(run);
    for (uint64_t number = 0; number < 2; ++number) {
      run.assume(at.meeting.full(number));
      at.meeting.release(number, 1);
    }
  });
  world.location("released", delegate, numbers);
  return world.report("meeting");
}

}  // namespace

int main() {
  return refusals(true) && refusals(false) && signals() && quiet_rings() && meeting() ? 0 : 1;
}
