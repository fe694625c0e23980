// The threads of a kernel change words by ATOMICs, each in turn alone and with its neighbour in the
// warp; for test_atomics.py on a GPU, and for host_atomics.cc on a CPU.
#include "epfabric/platform_block.cuh"
#include "epfabric/rank.cuh"

using namespace epfabric;

// What one thread asked for, and what the word held before.
struct Change {
  uint64_t word;
  uint64_t cas;  // 0: ADD
  uint64_t expected;
  uint64_t value;  // the addend or the new value
  uint64_t old;
};

namespace {

constexpr uint32_t kSharing = 4;  // threads of a block have a word together, and one alone

EPF_DEVICE uint64_t draw(uint64_t seed, uint64_t number) {
  uint64_t mixed = seed + (number + 1) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
  return mixed ^ mixed >> 31;
}

EPF_DEVICE uint32_t ring_of(const DeviceRank& rank) { return platform::block() % rank.rings; }

EPF_DEVICE Pushed push_alone(const DeviceRank& rank, uint32_t owner, const Change& change) {
  const DeviceRing ring = rank.ring(ring_of(rank));
  Slot slots[2]{};
  if (change.cas) {
    pack_cas(owner, change.word, change.expected, change.value, slots);
    return push_pair(ring, slots, rank.bounds());
  }
  pack_atomic(Op::kAdd, owner, change.word, change.value, slots[0]);
  return push_one(ring, slots[0], rank.bounds());
}

// By a warp: a lane with an even number has a CAS, whose second slot, with `lent`, is pushed by the
// next lane; that one has an ADD afterwards.
EPF_DEVICE Pushed push_together(const DeviceRank& rank, uint32_t owner, const Change& change,
                                uint64_t lent) {
  const DeviceRing ring = rank.ring(ring_of(rank));
  Slot half{}, add{};
  if (change.cas) {
    pack_atomic(Op::kCas, owner, change.word, change.expected, half);
  } else {
    pack_atomic(Op::kCasSwap, 0, 0, lent, half);
    pack_atomic(Op::kAdd, owner, change.word, change.value, add);
  }
  const Pushed first = push_warp(ring, half, true, rank.bounds());
  const Pushed second = push_warp(ring, add, !change.cas, rank.bounds());
  return change.cas ? first : second;
}

}  // namespace

// `changes`: rounds of each thread. A ring of one block is deep enough for one round of it, since
// all results are read before the next one begins, and a ring of several for all of their rounds.
EPF_KERNEL void EPF_LAUNCH_BOUNDS(256)
    change_words(const DeviceRank* rank, uint32_t owner, uint64_t first_word, uint32_t rounds,
                 uint64_t seed, Change* changes, uint64_t* failed) {
  const uint32_t thread = platform::thread(), threads = platform::threads();
  const uint64_t me = uint64_t{platform::block()} * threads + thread;
  const uint64_t words[2] = {first_word + thread / kSharing, first_word + threads / kSharing + me};
  uint64_t last[2] = {0, 0};
  for (uint32_t round = 0; round < rounds; ++round) {
    const bool together = round % 2 == 1, even = thread % 2 == 0;
    const uint64_t number = 2 * (me * rounds + round);
    const uint64_t choice = draw(seed, number + 1);
    const uint32_t own = choice & 1;
    Change change{words[own], 0, 0, draw(seed, number), 0};
    change.cas = together ? even : choice >> 1 & 1;
    // What was seen last is often still there, a draw never is.
    if (change.cas) change.expected = (choice >> 2 & 7) != 0 ? last[own] : choice;
    const Pushed pushed =
        together ? push_together(*rank, owner, change, draw(seed, number - 2 * uint64_t{rounds}))
                 : push_alone(*rank, owner, change);
    const AtomicEnd end = rank->wait_atomic(ring_of(*rank), pushed.ticket);
    if (pushed.waited != Waited::kDone || !end.known) platform::store_relaxed(failed, 1);
    change.old = end.old;
    const bool effect = !change.cas || change.old == change.expected;
    last[own] = !effect ? change.old : change.cas ? change.value : change.old + change.value;
    changes[me * rounds + round] = change;
    platform::block_barrier();
  }
}
