// Fuzz: what a pod may write into its ring's slots, as the ring takes them and check.h decides.
// Input: slots of a ring, as they lie there.
#include <array>

#include "fuzz.h"
#include "ring.h"

namespace epfabric::agent {
namespace {

constexpr uint32_t kDepth = 16;

// World of 3: this session's regions, a rank with two regions and a gap, one with none.
struct World {
  std::array<Extent, 1> own{{{0, 65536}}};
  std::array<Extent, 2> other{{{0, 4096}, {65536, 65536 + 8192}}};
  std::array<std::span<const Extent>, 3> regions{own, other, std::span<const Extent>{}};
  std::array<std::atomic<uint8_t>, 3> states{};
  std::atomic<uint32_t> departed{0};
  SessionView view{3, 16, own, regions, states, &departed};
};

bool inside(const Extent& extent, uint64_t begin, uint64_t bytes) {
  return begin >= extent.begin && begin <= extent.end && bytes <= extent.end - begin;
}

bool same(const Slot& a, const Slot& b) { return a.lo == b.lo && a.hi == b.hi; }

void check_write(const Slot& slot, const Command& command, const World& world) {
  const Write& write = command.write;
  require(write.rank < world.view.world && write.signal < world.view.signals,
          "a rank and a signal word that exist");
  Slot back{};
  if (command.op == Op::kSignal) {
    require(write.units == 0 && write.advance != 0, "a SIGNAL that advances");
    require(pack_signal(write.rank, write.signal, write.advance, back) && same(back, slot),
            "a SIGNAL survives");
    return;
  }
  require(pack_write(write, back) && same(back, slot), "a WRITE survives");
  const uint64_t bytes = uint64_t{write.units} * kUnitBytes;
  require(inside(world.own[command.source_region], uint64_t{write.source} * kUnitBytes, bytes),
          "a source within its region");
  require(inside(world.regions[write.rank][command.destination_region],
                 uint64_t{write.destination} * kUnitBytes, bytes),
          "a destination within its region");
}

void check_atomic(const Slot& slot, const Slot& second, const Command& command,
                  const World& world) {
  const Atomic& atomic = command.atomic;
  require(atomic.rank < world.view.world, "a rank and a signal word that exist");
  require(inside(world.regions[atomic.rank][command.destination_region], atomic.word * kWordBytes,
                 kWordBytes),
          "a word within its region");
  Slot back{};
  require(
      pack_atomic(command.op, atomic.rank, atomic.word, atomic.operand, back) && same(back, slot),
      "an ATOMIC survives");
  if (command.op != Op::kCas) return;
  require(pack_atomic(Op::kCasSwap, 0, 0, atomic.swap, back) && same(back, second),
          "the second half of a CAS survives");
}

void check_accepted(const std::array<Slot, kDepth>& slots, uint64_t ticket, const Command& command,
                    const World& world) {
  const auto slot_at = [&](uint64_t at) {
    const Slot& slot = slots[at & (kDepth - 1)];
    const uint64_t lap = lap_of(at, kDepth);
    require(((slot.lo ^ lap) & kLapBit) == 0 && ((slot.hi ^ lap) & kLapBit) == 0,
            "both halves of a slot are of its lap");
    return Slot{slot.lo & ~kLapBit, slot.hi & ~kLapBit};
  };
  const Slot slot = slot_at(ticket);
  require(command.op == op_of(slot.lo), "the op of the slot");
  switch (command.op) {
    case Op::kWrite:
    case Op::kSignal:
      return check_write(slot, command, world);
    case Op::kAdd:
      return check_atomic(slot, {}, command, world);
    case Op::kCas:
      return check_atomic(slot, slot_at(ticket + 1), command, world);
    case Op::kDrain:
      require(command.until <= ticket, "a DRAIN of what comes before it");
      return require(same(pack_drain(command.until), slot), "a DRAIN survives");
    case Op::kBarrier:
      return require(same(pack_barrier(command.rail), slot), "a BARRIER survives");
    default:
      require(false, "an op of a command");
  }
}

// The held WRITE with its neighbours, all of which the ring has.
void check_joined(const Held& held, const World& world) {
  const Write& write = held.command.write;
  const uint64_t bytes = uint64_t{write.units} * kUnitBytes;
  require(held.slots == 1 + held.joined && held.fused <= held.joined, "a slot for each neighbour");
  require(inside(world.own[held.command.source_region], uint64_t{write.source} * kUnitBytes, bytes),
          "the source of neighbours within their region");
  require(inside(world.regions[write.rank][held.command.destination_region],
                 uint64_t{write.destination} * kUnitBytes, bytes),
          "the destination of neighbours within their region");
  require(write.signal < world.view.signals, "the signal word of neighbours exists");
}

// Takes all that the ring holds, lap after lap while the input has slots.
void run(Input& input) {
  static const World world;
  std::array<Slot, kDepth> slots{};
  RingCounters counters{};
  std::array<AtomicResult, kDepth> results{};
  const auto how = input.get<uint8_t>();
  Ring ring(how & 1, slots.data(), &counters, results.data(), kDepth);
  for (uint64_t head = 0; input.left() >= sizeof(Slot);) {
    slots[head++ & (kDepth - 1)] = input.get<Slot>();
    uint32_t budget = kDepth;
    while (ring.take(world.view, budget)) {
      check_accepted(slots, ring.ticket(), ring.held().command, world);
      if ((how & 2) && ring.neighbour_likely()) {
        ring.join(world.view, Joining{}, budget);
        if (ring.held().command.op == Op::kWrite) check_joined(ring.held(), world);
      }
      ring.finish();
    }
    ring.retire();
    require(ring.retired() <= ring.taken() && counters.completed == ring.retired(),
            "what was taken completes, and nothing else");
    require(ring.taken() <= head, "no slot is taken twice");
  }
}

}  // namespace

void fuzz(Input& input) { run(input); }

std::vector<std::vector<std::byte>> seeds() {
  std::vector<Slot> all(10);
  bool packed = pack_write({1, 0, 0, 4, 15, 1}, all[0]) && pack_write({1, 4, 4, 1, 15, 1}, all[1]);
  packed = packed && pack_signal(1, 3, kMaxAdvance, all[2]);
  packed = packed && pack_atomic(Op::kAdd, 1, 511, ~uint64_t{0}, all[3]);
  packed = packed && pack_atomic(Op::kCas, 1, 8192, uint64_t{1} << 63 | 5, all[4]);
  packed = packed && pack_atomic(Op::kCasSwap, 0, 0, 7, all[5]);
  require(packed, "seeds fit");
  all[6] = pack_drain(6);
  all[7] = pack_barrier();
  all[8] = pack_barrier(true);
  all[9] = all[0];
  std::vector<std::vector<std::byte>> out;
  for (const uint64_t laps : {0, 1, 2}) {
    Output to;
    to.put(uint8_t{2});
    for (uint64_t ticket = 0; ticket < laps * kDepth + all.size(); ++ticket) {
      Slot slot = all[ticket % all.size()];
      slot.lo |= lap_of(ticket, kDepth);
      slot.hi |= lap_of(ticket, kDepth);
      to.put(slot);
    }
    out.push_back(to.bytes);
  }
  return out;
}

}  // namespace epfabric::agent
