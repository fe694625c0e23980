// Kernels of the tests beside this file: they push real commands to a real core and check what
// arrives, on the GPU itself.
#include "epfabric/rank.cuh"

using namespace epfabric;

namespace {

// The word at `index` of what `source` sends in `round`; no two rounds or places agree.
__device__ uint64_t word_of(uint32_t source, uint64_t round, uint64_t index) {
  uint64_t mixed = (uint64_t{source} << 56) ^ (round << 32) ^ index;
  mixed *= 0x9e3779b97f4a7c15u;
  return mixed ^ (mixed >> 29);
}

__device__ Slot write_command(uint32_t to, uint64_t source, uint64_t destination, uint32_t bytes,
                              uint32_t signal, uint32_t advance) {
  Slot out{};
  pack_write({to, static_cast<uint32_t>(source / kUnitBytes),
              static_cast<uint32_t>(destination / kUnitBytes), bytes / kUnitBytes, signal, advance},
             out);
  return out;
}

}  // namespace

// One thread, batches of `batch`: 16-byte writes of the words [0, 2 * count) of the source to the
// same places of the destination.
extern "C" __global__ void push_by_thread(const DeviceRank* rank, uint32_t to, uint64_t from,
                                          uint64_t base, uint32_t count, uint32_t batch,
                                          uint32_t* failed) {
  const DeviceRing ring = rank->ring(0);
  Producer producer{ring.slots, ring.tail, *ring.head, *ring.seen_tail, ring.depth};
  const Bounds bounds = rank->bounds();
  for (uint32_t done = 0; done < count;) {
    Slot commands[kMaxBatch];
    const uint32_t now = min(batch, count - done);
    for (uint32_t i = 0; i < now; ++i) {
      const uint64_t at = uint64_t{done + i} * kUnitBytes;
      commands[i] = write_command(to, from + at, base + at, kUnitBytes, 0, 0);
    }
    const uint64_t begin = platform::clock_ns();
    while (!producer.try_push(commands, now)) {
      if (bounds.aborts.set() || platform::clock_ns() - begin > bounds.timeout_ns) {
        *failed = 1;
        return;
      }
    }
    done += now;
  }
  *ring.head = producer.head;
  *ring.seen_tail = producer.cached_tail;
}

// Every warp of the grid pushes its part to one ring that all share; lanes take part at random.
extern "C" __global__ void push_by_warps(const DeviceRank* rank, uint32_t to, uint64_t from,
                                         uint64_t base, uint32_t count, uint32_t* failed) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint32_t first = 0; first < count; first += threads) {
    const uint32_t mine = first + thread;
    // Twice over: those lanes whose bit is 0 go in the second push.
    const bool late = word_of(7, first, thread) & 1;
    for (int pass = 0; pass < 2; ++pass) {
      const bool wanted = mine < count && late == (pass == 1);
      const uint64_t at = uint64_t{mine} * kUnitBytes;
      const Slot command = write_command(to, from + at, base + at, kUnitBytes, 0, 0);
      const Pushed pushed = push_warp(rank->ring(0), command, wanted, rank->bounds());
      if (pushed.waited != Waited::kDone) atomicExch(failed, 1);
    }
  }
}

// One warp that owns ring 1.
extern "C" __global__ void push_by_owner(const DeviceRank* rank, uint32_t to, uint64_t from,
                                         uint64_t base, uint32_t count, uint32_t* failed) {
  WarpProducer producer(rank->ring(1));
  for (uint32_t first = 0; first < count; first += platform::kWarpSize) {
    const uint32_t mine = first + platform::lane();
    const uint64_t at = uint64_t{mine} * kUnitBytes;
    const Slot command = write_command(to, from + at, base + at, kUnitBytes, 0, 0);
    if (producer.push(command, mine < count, rank->bounds()).waited != Waited::kDone) *failed = 1;
  }
  producer.give_back(rank->ring(1));
}

// A rank of a group of two, one block of it: in every round it writes new words, sends them with a
// signal from the ring of its block, and checks what the other rank sent in the same round.
extern "C" __global__ void exchange(const DeviceRank* rank, uint64_t* sent,
                                    const uint64_t* received, uint64_t destination, uint32_t words,
                                    uint32_t rounds, uint64_t* wrong, uint32_t* failed) {
  const uint32_t me = rank->rank, other = 1 - me, ring = blockIdx.x;
  const uint64_t part = uint64_t{blockIdx.x} * words;
  const uint32_t warp = threadIdx.x / platform::kWarpSize;
  for (uint64_t round = 1; round <= rounds; ++round) {
    // Two halves of the buffers in turn: a rank is at most one round ahead of the other.
    const uint64_t half = (round & 1) * gridDim.x * words;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
      sent[half + part + i] = word_of(me, round, part + i);
    }
    __syncthreads();
    if (warp == 0) {
      // One command for each lane; the last one carries the signal of the whole.
      const uint64_t bytes = uint64_t{words} * 8 / platform::kWarpSize;
      const uint64_t at = (half + part) * 8 + platform::lane() * bytes;
      const bool last = platform::lane() == platform::kWarpSize - 1;
      const Slot command =
          write_command(other, at, destination + at, static_cast<uint32_t>(bytes), 0, last ? 1 : 0);
      const Pushed pushed = push_warp(rank->ring(ring), command, true, rank->bounds());
      if (pushed.waited != Waited::kDone) *failed = 1;
      if (last && rank->wait_signal(other, ring, 0, round) != Waited::kDone) *failed = 2;
      platform::warp_barrier();
    }
    __syncthreads();
    platform::fence_acquire();
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) {
      const uint64_t got = platform::load_relaxed(&received[half + part + i]);
      if (got != word_of(other, round, part + i)) {
        atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ull);
      }
    }
    __syncthreads();
  }
}

// A rank of a group: in every round each rank writes the round's number to the other's word and
// enters a barrier; afterwards nobody may see an older one.
extern "C" __global__ void meet(const DeviceRank* rank, uint64_t* sent, const uint64_t* received,
                                uint64_t destination, uint32_t rounds, uint64_t* wrong,
                                uint32_t* failed) {
  const uint32_t other = 1 - rank->rank;
  for (uint64_t round = 1; round <= rounds; ++round) {
    const uint32_t at = (round & 1) * 1024 + platform::lane() * kUnitBytes;
    sent[at / 8] = round;
    const Slot command = write_command(other, at, destination + at, kUnitBytes, 0, 0);
    const uint32_t ring = static_cast<uint32_t>(round % rank->rings);
    if (push_warp(rank->ring(ring), command, true, rank->bounds()).waited != Waited::kDone) {
      *failed = 1;
    }
    if (const Waited waited = rank->barrier(); waited != Waited::kDone) *failed = 2;
    if (platform::load_relaxed(&received[at / 8]) != round) {
      atomicAdd(reinterpret_cast<unsigned long long*>(wrong), 1ull);
    }
    if (*failed != 0) return;
  }
}

// How a wait of this kind for something that never comes ends, and after how many nanoseconds. By
// one warp of one rank of two. `stage`, which the host reads meanwhile: 1 from when it waits, 2
// afterwards.
extern "C" __global__ void wait_in_vain(const DeviceRank* rank, uint32_t kind, uint64_t* stage,
                                        uint32_t* waited, uint64_t* took) {
  enum : uint32_t { kSignal, kRoom, kCompleted, kDrain, kBarrier };
  const bool first = platform::lane() == 0;
  const DeviceRing ring = rank->ring(0);
  // The other rank enters no barrier: what follows one in its ring is never taken.
  if (first && kind == kDrain) push_one(ring, pack_barrier(), rank->bounds());
  const uint64_t begin = platform::clock_ns();
  if (first && kind != kRoom) platform::store_release(stage, 1);
  Waited found = Waited::kDone;
  if (kind == kBarrier) {
    found = rank->barrier();
  } else if (first) {
    if (kind == kSignal) found = rank->wait_signal(0, 0, 0, ~uint64_t{0});
    if (kind == kCompleted) found = rank->wait_completed(0, 0);
    if (kind == kDrain) found = rank->drain(0);
    for (uint32_t n = 0; kind == kRoom && n < 2 * ring.depth && found == Waited::kDone; ++n) {
      if (n >= ring.depth + platform::load_relaxed(ring.tail)) platform::store_release(stage, 1);
      found = push_one(ring, pack_barrier(), rank->bounds()).waited;
    }
  }
  if (!first) return;
  *waited = static_cast<uint32_t>(found);
  *took = platform::clock_ns() - begin;
  platform::store_release(stage, 2);
}

// The offsets of DeviceRank's fields and its size, for its mirror.
extern "C" __global__ void offsets(const DeviceRank* rank, uint32_t* out) {
  const void* fields[] = {&rank->pod,        &rank->agent, &rank->heads,    &rank->seen_tails,
                          &rank->timeout_ns, &rank->rings, &rank->depth,    &rank->signals,
                          &rank->world,      &rank->rank,  &rank->reserved, rank + 1};
  for (uint32_t i = 0; i < sizeof(fields) / sizeof(fields[0]); ++i) {
    out[i] = static_cast<uint32_t>(static_cast<const char*>(fields[i]) -
                                   reinterpret_cast<const char*>(rank));
  }
}
