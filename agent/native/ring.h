// One ring as its proxy sees it: takes each command once, holds it until it is posted, and retires
// tickets in order. Only its proxy calls it, but for taken(), retired() and idle(), which other
// proxies look at.
#pragma once

#include <epfabric/fifo.h>
#include <epfabric/layout.h>

#include <atomic>
#include <vector>

#include "check.h"
#include "counters.h"

namespace epfabric::agent {

// The command that a ring is working on: accepted, but not all of it posted yet.
struct Held {
  Command command;
  uint64_t posted_bytes = 0;
  uint64_t serial = 0;   // DRAIN: its name at the transport
  bool entered = false;  // BARRIER
  bool announced = false;
};

class Ring {
 public:
  Ring(uint32_t index, const Slot* slots, RingCounters* shared, uint32_t depth)
      : index_(index), depth_(depth), consumer_{slots, 0, depth}, shared_(shared), window_(depth) {}

  uint32_t index() const { return index_; }
  bool holding() const { return holding_; }
  Held& held() { return held_; }
  const RingCount& count() const { return count_; }
  uint64_t taken() const { return taken_.load(std::memory_order_acquire); }
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }

  // Nothing outstanding and nothing visible. Exact when the producer has stopped pushing.
  bool idle() const {
    const uint64_t taken = this->taken();  // partner: the proxy's stores in finish() and retire()
    if (retired() != taken) return false;
    Slot ignored;
    return !Consumer{consumer_.slots, taken, depth_}.peek(0, ignored);
  }

  // Takes the next command if there is one; refused ones are passed over, at most `budget` of them.
  // True when the ring now holds a command. The slot is read once, here.
  bool take(const SessionView& view, uint32_t& budget) {
    while (!holding_ && budget > 0) {
      if (consumer_.next - retired_.load(std::memory_order_relaxed) + 2 > depth_) return false;
      Slot slot;
      if (!consumer_.peek(0, slot)) return false;
      Slot second{};
      const bool cas = op_of(slot.lo) == Op::kCas;
      if (cas && !consumer_.peek(1, second)) return false;  // both slots or none
      const Refusal refusal = check(slot, consumer_.next, index_, view, held_.command);
      if (refusal == Refusal::kNone) {
        held_.posted_bytes = held_.serial = 0;
        held_.entered = held_.announced = false;
        holding_ = true;
        window_[consumer_.next & (depth_ - 1)] = {0, held_.command.op};
        return true;
      }
      const bool half = cas && op_of(second.lo) != Op::kCasSwap;
      const uint32_t slots = cas && !half ? 2 : 1;
      note_refusal(half ? Refusal::kHalfCas : refusal, slots);
      for (uint32_t i = 0; i < slots; ++i) pass_over();
      budget -= 1;
    }
    return holding_;
  }

  // Counts one more part of the held command that will complete later; its ticket for part_done().
  void add_part() { window_[consumer_.next & (depth_ - 1)].parts += 1; }
  uint64_t ticket() const { return consumer_.next; }

  // The held command is posted whole.
  void finish() {
    holding_ = false;
    consumer_.next += 1;
    taken_.store(consumer_.next, std::memory_order_release);  // partner: taken() of another proxy
  }

  // The held command cannot run any more.
  void give_up(Refusal refusal) {
    holding_ = false;
    window_[consumer_.next & (depth_ - 1)].op = Op::kInvalid;
    note_refusal(refusal, 1);
    consumer_.next += 1;
    taken_.store(consumer_.next, std::memory_order_release);
  }

  // The held command's destination, or this rank, is masked: it completes when its parts have.
  void mask() {
    holding_ = false;
    window_[consumer_.next & (depth_ - 1)].op = Op::kInvalid;
    note_masked();
    consumer_.next += 1;
    taken_.store(consumer_.next, std::memory_order_release);
  }

  void part_done(uint64_t ticket) { window_[ticket & (depth_ - 1)].parts -= 1; }
  // The part will not be heard of, since its destination is masked.
  void part_masked(uint64_t ticket) {
    Entry& entry = window_[ticket & (depth_ - 1)];
    entry.parts -= 1;
    const bool held = holding_ && ticket == consumer_.next;  // mask() will count it
    if (held || entry.op == Op::kInvalid) return;
    entry.op = Op::kInvalid;
    note_masked();
  }

  // Retires what is complete, in order, and tells the producer. True when something moved.
  bool retire() {
    const uint64_t taken = consumer_.next;
    uint64_t retired = retired_.load(std::memory_order_relaxed);
    const uint64_t before = retired;
    while (retired < taken && window_[retired & (depth_ - 1)].parts == 0) {
      count_op(window_[retired & (depth_ - 1)].op);
      retired += 1;
    }
    if (told_ != taken) {
      // Partner: Producer::try_push(). No release: the acquire fence of peek() stands before it.
      platform::store_relaxed(&shared_->tail, taken);
      told_ = taken;
    }
    if (retired == before) return false;
    retired_.store(retired, std::memory_order_release);  // partner: idle() of another proxy
    platform::store_release(&shared_->completed,
                            retired);  // partner: the pod's wait for its ticket
    return true;
  }

 private:
  struct Entry {
    uint32_t parts = 0;  // completions still to come
    Op op = Op::kInvalid;
  };

  // The next slot asks for nothing (any more).
  void pass_over() {
    window_[consumer_.next & (depth_ - 1)] = {0, Op::kInvalid};
    consumer_.next += 1;
    taken_.store(consumer_.next, std::memory_order_release);
  }

  void note_refusal(Refusal refusal, uint32_t slots) {
    count_.refused[static_cast<size_t>(refusal)].add(1);
    count_.refused_slots[static_cast<size_t>(refusal)].add(slots);
    refused_ += 1;
    platform::store_relaxed(&shared_->last_refused_ticket, consumer_.next);
    platform::store_relaxed(&shared_->last_refused_reason, static_cast<uint64_t>(refusal));
    platform::store_release(&shared_->refused,
                            refused_);  // partner: the pod's look after `completed`
  }

  void note_masked() {
    count_.masked.add(1);
    // Partner: the pod's look after `completed`.
    platform::store_release(&shared_->masked, count_.masked.get());
  }

  void count_op(Op op) {
    if (op == Op::kWrite) return count_.writes.add(1);
    if (op == Op::kSignal) return count_.signals.add(1);
    if (op == Op::kDrain) return count_.drains.add(1);
    if (op == Op::kBarrier) return count_.barriers.add(1);
  }

  const uint32_t index_;
  const uint32_t depth_;
  Consumer consumer_;
  RingCounters* const shared_;
  std::vector<Entry> window_;  // by ticket
  Held held_;
  bool holding_ = false;
  uint64_t refused_ = 0;
  uint64_t told_ = 0;
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint64_t> retired_{0};
  RingCount count_;
};

}  // namespace epfabric::agent
