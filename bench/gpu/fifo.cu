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
};

// One thread: pushes a command and waits until it sees it completed. cycles[count]: of each trip.
extern "C" __global__ void round_trips(const Trip* trip, uint32_t count, uint64_t* cycles,
                                       Times* times, uint32_t* failed) {
  Producer producer{trip->slots, trip->tail, *trip->head, *trip->head,
                    static_cast<uint32_t>(trip->depth)};
  times->begin_ns = platform::clock_ns();
  for (uint32_t i = 0; i < count; ++i) {
    const long long begin = clock64();
    const bool pushed = producer.try_push(&trip->command, 1);
    if (!pushed || wait_at_least(trip->completed, producer.head, trip->aborts, trip->timeout_ns) !=
                       Waited::kDone) {
      *failed = 1;
      return;
    }
    producer.cached_tail = producer.head;  // completed is taken
    cycles[i] = static_cast<uint64_t>(clock64() - begin);
  }
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
