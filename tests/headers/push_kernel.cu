// A kernel that uses every device path of the shared headers, so that each compiler has to generate
// code for all of them; compiled by test_compilers.py, never run.
#include "epfabric/fifo.h"
#include "epfabric/layout.h"

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define KERNEL extern "C" __global__
#else
#define KERNEL extern "C" __attribute__((global))
#endif

using namespace epfabric;

KERNEL void push_batch(Slot* slots, const uint64_t* tail, uint64_t* head, uint32_t depth,
                       const Write* writes, uint32_t count, uint32_t* refused) {
  Producer producer{slots, tail, *head, 0, depth};
  Slot batch[kMaxBatch];
  uint32_t filled = 0;
  for (uint32_t i = 0; i < count && i < kMaxBatch; ++i) {
    if (pack_write(writes[i], batch[filled])) {
      ++filled;
    } else {
      ++*refused;
    }
  }
  if (!producer.try_push(batch, filled)) *refused += filled;
  *head = producer.head;
}

KERNEL void push_others(Slot* slots, const uint64_t* tail, uint32_t depth, uint64_t operand,
                        bool* pushed) {
  Producer producer{slots, tail, 0, 0, depth};
  Slot batch[6];
  bool fits = pack_signal(1, 2, 3, batch[0]);
  fits = pack_atomic(Op::kAdd, 1, 7, operand, batch[1]) && fits;
  fits = pack_atomic(Op::kCas, 1, 7, operand, batch[2]) && fits;
  fits = pack_atomic(Op::kCasSwap, 0, 0, operand, batch[3]) && fits;
  batch[4] = pack_drain(producer.head + 4);
  batch[5] = pack_barrier();
  *pushed = fits && producer.try_push(batch, 6);
}

KERNEL void take_one(const Slot* slots, uint64_t next, uint32_t depth, Write* out, bool* taken) {
  const Consumer consumer{slots, next, depth};
  Slot slot{};
  *taken = consumer.peek(0, slot) && op_of(slot.lo) == Op::kWrite && !flag_of(slot.lo);
  if (*taken) *out = unpack_write(slot);
}

KERNEL void wait_for(const unsigned char* agent, const unsigned char* pod, uint32_t rings,
                     uint32_t depth, uint32_t signals, uint32_t world, uint64_t value,
                     uint64_t* mine, Waited* waited) {
  if (!layout_valid(rings, depth, signals, world)) return;
  const Layout at = layout_of(rings, depth, signals, world);
  const AbortWords aborts{&reinterpret_cast<const PodHeader*>(pod)->abort,
                          &reinterpret_cast<const AgentHeader*>(agent)->abort};
  const auto* word = reinterpret_cast<const uint64_t*>(agent + at.signals);
  *waited = wait_at_least(word, value, aborts, 1000000000u);
  platform::store_release(mine, platform::load_acquire(word));
}
