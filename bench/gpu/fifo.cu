// Kernels of the bench gpu_fifo: a GPU pushes to the proxies of a real core, or plays ping-pong
// with a bare CPU thread. Times are the GPU's own.
#include "epfabric/rank.cuh"

using namespace epfabric;

namespace {

// A signal to the rank itself: checked and carried out by the proxy, and its word counts it.
__device__ Slot signal_command(const DeviceRank* rank) {
  Slot out{};
  pack_signal(rank->rank, 0, 1, out);
  return out;
}

using Vector = uint4;

struct Times {
  uint64_t begin_ns;
  uint64_t pushed_ns;     // the last command was stored
  uint64_t completed_ns;  // the last command was seen as completed
};

__device__ void finish(const DeviceRank* rank, uint32_t ring, uint64_t last, Times* times,
                       uint32_t* failed) {
  platform::fence_release();  // the stores have left the GPU
  times->pushed_ns = platform::clock_ns();
  if (rank->wait_completed(ring, last) != Waited::kDone) atomicExch(failed, 2);
  times->completed_ns = platform::clock_ns();
}

}  // namespace

// One thread, batches of `batch`.
extern "C" __global__ void one_thread(const DeviceRank* rank, uint32_t count, uint32_t batch,
                                      Times* times, uint32_t* failed) {
  const DeviceRing ring = rank->ring(0);
  Producer producer{ring.slots, ring.tail, *ring.head, *ring.seen_tail, ring.depth};
  Slot commands[kMaxBatch];
  for (uint32_t i = 0; i < kMaxBatch; ++i) commands[i] = signal_command(rank);
  times->begin_ns = platform::clock_ns();
  for (uint32_t done = 0; done < count; done += batch) {
    while (!producer.try_push(commands, batch)) {
      if (platform::clock_ns() - times->begin_ns > rank->timeout_ns) {
        *failed = 1;
        return;
      }
    }
  }
  finish(rank, 0, producer.head - 1, times, failed);
  *ring.head = producer.head;
  *ring.seen_tail = producer.cached_tail;
}

// One warp for each ring (a block each), each the owner of its ring; `lanes` commands at a time.
extern "C" __global__ void one_warp_a_ring(const DeviceRank* rank, uint32_t count, uint32_t lanes,
                                           Times* times, uint32_t* failed) {
  const uint32_t index = blockIdx.x;
  WarpProducer producer(rank->ring(index));
  const Slot command = signal_command(rank);
  const Bounds bounds = rank->bounds();
  if (platform::lane() == 0) times[index].begin_ns = platform::clock_ns();
  for (uint32_t done = 0; done < count; done += lanes) {
    const Pushed pushed = producer.push(command, platform::lane() < lanes, bounds);
    if (pushed.waited != Waited::kDone) {
      *failed = 1;
      return;
    }
  }
  if (platform::lane() == 0) finish(rank, index, producer.head - 1, times + index, failed);
  producer.give_back(rank->ring(index));
}

// Many warps share each ring: gridDim.x rings, blockDim.x / 32 warps to each.
extern "C" __global__ void shared_rings(const DeviceRank* rank, uint32_t count, Times* times,
                                        uint32_t* failed) {
  __shared__ uint64_t last;
  const uint32_t index = blockIdx.x;
  const DeviceRing ring = rank->ring(index);
  const Slot command = signal_command(rank);
  const Bounds bounds = rank->bounds();
  if (threadIdx.x == 0) {
    last = 0;
    times[index].begin_ns = platform::clock_ns();
  }
  __syncthreads();
  uint64_t mine = 0;
  for (uint32_t done = threadIdx.x; done < count; done += blockDim.x) {
    const Pushed pushed = push_warp(ring, command, true, bounds);
    if (pushed.waited != Waited::kDone) {
      *failed = 1;
      return;
    }
    mine = pushed.ticket;
  }
  atomicMax(reinterpret_cast<unsigned long long*>(&last), mine);
  __syncthreads();
  if (threadIdx.x == 0) finish(rank, index, last, times + index, failed);
}

// What one thread needs of a ring for round trips; the consumer may be a proxy or a bare thread.
struct Trip {
  Slot* slots;
  const uint64_t* tail;
  const uint64_t* completed;
  uint64_t* head;  // GPU memory
  AbortWords aborts;
  Slot command;
  uint64_t timeout_ns;
  uint64_t depth;
  Vector* payload;       // host memory that is written before each push, or nothing
  uint64_t vectors;      // of it
  const Vector* copied;  // where the command brings it, or nothing
};

// By one warp: what trip i writes before its push.
__device__ void write_payload(const Trip& trip, uint32_t i) {
  for (uint32_t v = threadIdx.x; v < trip.vectors; v += blockDim.x) {
    trip.payload[v] = make_uint4(i, v, ~i, ~v);
  }
  __syncwarp();
}

// By one warp: whether the payload of trip i has come, by a vector for each lane.
__device__ bool payload_came(const Trip& trip, uint32_t i) {
  if (trip.copied == nullptr) return true;
  const uint32_t v = (i * 32 + threadIdx.x) % static_cast<uint32_t>(trip.vectors);
  const uint64_t* words = reinterpret_cast<const uint64_t*>(trip.copied + v);
  const bool came = platform::load_relaxed(words) == (uint64_t{v} << 32 | i) &&
                    platform::load_relaxed(words + 1) == ~(uint64_t{v} << 32 | i);
  return __all_sync(~0u, came) != 0;
}

// One warp, of which one thread pushes a command and waits until it sees it completed.
// cycles[count]: of each trip.
extern "C" __global__ void round_trips(const Trip* trip, uint32_t count, uint64_t* cycles,
                                       Times* times, uint32_t* failed) {
  Producer producer{trip->slots, trip->tail, *trip->head, *trip->head,
                    static_cast<uint32_t>(trip->depth)};
  if (threadIdx.x == 0) times->begin_ns = platform::clock_ns();
  for (uint32_t i = 0; i < count; ++i) {
    const long long begin = clock64();
    write_payload(*trip, i);
    bool done = true;
    if (threadIdx.x == 0) {
      done = producer.try_push(&trip->command, 1) &&
             wait_at_least(trip->completed, producer.head, trip->aborts, trip->timeout_ns) ==
                 Waited::kDone;
      producer.cached_tail = producer.head;  // completed is taken
      cycles[i] = static_cast<uint64_t>(clock64() - begin);
    }
    if (__all_sync(~0u, done) == 0 || !payload_came(*trip, i)) {
      *failed = 1;
      return;
    }
  }
  if (threadIdx.x != 0) return;
  times->completed_ns = platform::clock_ns();
  *trip->head = producer.head;
}

// The floor: two words of host memory, nothing else. The CPU answers `head` in `tail`.
extern "C" __global__ void bare_ping_pong(const Trip* trip, uint32_t count, uint64_t* cycles,
                                          Times* times, uint32_t* failed) {
  uint64_t* const ping = trip->head;
  const uint64_t* const pong = trip->tail;
  times->begin_ns = platform::clock_ns();
  for (uint64_t i = 1; i <= count; ++i) {
    const long long begin = clock64();
    platform::store_release(ping, i);
    for (uint32_t look = 1; platform::load_acquire(pong) != i; ++look) {
      if (look % 64 == 0 && platform::clock_ns() - times->begin_ns > trip->timeout_ns) {
        *failed = 1;
        return;
      }
    }
    cycles[i - 1] = static_cast<uint64_t>(clock64() - begin);
  }
  times->completed_ns = platform::clock_ns();
}

// As many commands a second as are asked for: each ring has a block, of which one thread pushes a
// command whenever it is due, whatever became of those before. Of one ring another warp looks
// meanwhile at the word that its signals change (looks at all of them would hold up the proxies):
// seen_ns[count] is from when a command of it was due until what its proxy posted was seen.
extern "C" __global__ void offered(const DeviceRank* rank, uint32_t count, uint32_t period_ns,
                                   uint32_t watched, uint64_t* seen_ns, uint32_t* failed) {
  __shared__ long long start, cycles_in_64us;
  const uint32_t index = blockIdx.x;
  const DeviceRing ring = rank->ring(index);
  const uint64_t* word = rank->signal(rank->rank, index, 0);
  const uint64_t signalled = platform::load_relaxed(word);
  if (threadIdx.x == 0) {
    const uint64_t begin_ns = platform::clock_ns();
    const long long begin = clock64();
    while (platform::clock_ns() - begin_ns < 64'000) {
    }
    cycles_in_64us = clock64() - begin;
    // Rings come one after another within a period.
    start = clock64() + 20'000 + cycles_in_64us * period_ns / 64'000 * index / gridDim.x;
  }
  __syncthreads();
  const long long limit = cycles_in_64us * static_cast<long long>(rank->timeout_ns / 64'000);
  const auto due = [&](uint32_t i) { return start + cycles_in_64us * i / 64 * period_ns / 1'000; };
  if (threadIdx.x == 0) {
    Producer producer{ring.slots, ring.tail, *ring.head, *ring.seen_tail, ring.depth};
    const Slot command = signal_command(rank);
    for (uint32_t i = 0; i < count; ++i) {
      while (clock64() < due(i)) {
      }
      while (!producer.try_push(&command, 1)) {
        if (clock64() - start > limit) {
          *failed = 1;
          return;
        }
      }
    }
    *ring.head = producer.head;
    *ring.seen_tail = producer.cached_tail;
    if (rank->wait_completed(index, producer.head - 1) != Waited::kDone) *failed = 2;
  } else if (threadIdx.x == platform::kWarpSize && index == watched) {
    for (uint32_t i = 0; i < count;) {
      const uint64_t done = platform::load_relaxed(word) - signalled;
      const long long now = clock64();
      for (; i < count && i < done; ++i) {
        seen_ns[i] = static_cast<uint64_t>((now - due(i)) * 64'000 / cycles_in_64us);
      }
      if (now - start > limit) {
        *failed = 1;
        return;
      }
    }
  }
}
