// Kernels that use every function of the device-only headers, so that each compiler has to generate
// code for all of them; compiled by test_compilers.py, never run.
#include "epfabric/rank.cuh"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KERNEL extern "C" __global__
#else
#define KERNEL extern "C" __attribute__((global))
#endif

using namespace epfabric;

KERNEL void push_shared(const DeviceRank* rank, const Write* writes, uint32_t count, Pushed* out) {
  const uint32_t i = platform::lane();
  Slot command{};
  const bool wanted = i < count && pack_write(writes[i], command);
  out[i] = push_warp(rank->ring(0), command, wanted, rank->bounds());
}

KERNEL void push_owned(const DeviceRank* rank, const Write* writes, uint32_t count, Pushed* out) {
  const uint32_t i = platform::lane();
  Slot command{};
  const bool wanted = i < count && pack_write(writes[i], command);
  WarpProducer producer(rank->ring(1));
  out[i] = producer.push(command, wanted, rank->bounds());
  producer.give_back(rank->ring(1));
}

KERNEL void push_atomics(const DeviceRank* rank, uint64_t word, uint64_t value, AtomicEnd* out) {
  Slot add{}, pair[2]{};
  if (!pack_atomic(Op::kAdd, 1, word, value, add) || !pack_cas(1, word, 7, value, pair)) return;
  out[0] = rank->wait_atomic(0, push_one(rank->ring(0), add, rank->bounds()).ticket);
  out[1] = rank->wait_atomic(0, push_pair(rank->ring(0), pair, rank->bounds()).ticket);
}

KERNEL void wait_all(const DeviceRank* rank, uint64_t value, bool* done, Waited* waited) {
  if (platform::lane() == 0) {
    done[0] = rank->completed(0, value);
    waited[0] = rank->wait_completed(0, value);
    waited[1] = rank->wait_signal(1, 0, 2, value);
    waited[2] = rank->drain(0);
  }
  waited[3] = rank->barrier();
}
