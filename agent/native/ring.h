// One ring as its proxy sees it: takes each command once, holds it until it is posted, and retires
// tickets in order. Only its proxy calls it, but for taken(), retired(), idle() and visible(),
// which other threads look at.
#pragma once

#include <epfabric/fifo.h>
#include <epfabric/layout.h>

#include <atomic>
#include <vector>

#include "check.h"
#include "counters.h"
#include "joining.h"

namespace epfabric::agent {

// The command that a ring is working on: accepted, but not all of it posted yet.
struct Held {
  Command command;
  uint64_t posted_bytes = 0;
  uint64_t serial = 0;   // DRAIN: its name at the transport
  uint32_t slots = 1;    // a CAS has two, a WRITE those of the commands that it joined
  uint32_t joined = 0;   // WRITE: commands behind it that are part of it
  uint32_t fused = 0;    // of these, those whose signal its own one stands for
  uint32_t sent = 0;     // ATOMIC: records of it that are on their way
  bool entered = false;  // BARRIER
  bool announced = false;
};

class Ring {
 public:
  Ring(uint32_t index, const Slot* slots, RingCounters* shared, AtomicResult* results,
       uint32_t depth)
      : index_(index),
        depth_(depth),
        consumer_{slots, 0, depth},
        shared_(shared),
        results_(results),
        window_(depth) {}

  uint32_t index() const { return index_; }
  bool holding() const { return holding_; }
  Held& held() { return held_; }
  const RingCount& count() const { return count_; }
  uint64_t taken() const { return taken_.load(std::memory_order_acquire); }
  uint64_t retired() const { return retired_.load(std::memory_order_acquire); }

  // Nothing outstanding and nothing visible. Exact when the producer has stopped pushing.
  bool idle() const {
    const uint64_t taken = this->taken();  // partner: the proxy's stores in finish() and retire()
    return retired() == taken && !visible_at(taken);
  }
  // A command is there that was not taken yet.
  bool visible() const { return visible_at(taken()); }

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
      const Refusal refusal = check(slot, second, consumer_.next, index_, view, held_.command);
      if (refusal == Refusal::kNone) {
        hold(cas ? 2 : 1);
        return true;
      }
      const bool half = cas && op_of(second.lo) != Op::kCasSwap;
      const uint32_t slots = cas && !half ? 2 : 1;
      note_refusal(refusal, slots, consumer_.next);
      for (uint32_t i = 0; i < slots; ++i) pass_over();
      budget -= 1;
    }
    return holding_;
  }

  // The held command is perhaps a WRITE with a neighbour behind it: a guess by one word of a slot,
  // so that commands without neighbours pay little.
  bool neighbour_likely() const {
    const Write& write = held_.command.write;
    const Slot& slot = consumer_.slots[(consumer_.next + held_.slots) & (depth_ - 1)];
    return static_cast<uint32_t>(platform::load_relaxed(&slot.lo)) == write.source + write.units;
  }
  // The held WRITE takes on the neighbours that are visible behind it; the budget is left without
  // them, and not empty. They complete with it: their tickets come after its own, which waits for
  // all parts.
  [[gnu::noinline]] void join(const SessionView& view, const Joining& rules, uint32_t& budget) {
    while (budget > 1 && may_join(rules) && join_next(view, rules)) budget -= 1;
  }
  // Whether the held WRITE may still take on more, but nothing is visible behind it.
  bool may_grow(const Joining& rules) const {
    Slot ignored;
    return may_join(rules) && !consumer_.peek(held_.slots, ignored);
  }

  // Counts one more part of the held command that will complete later; its ticket for part_done().
  void add_part() { entry(consumer_.next).parts += 1; }
  uint64_t ticket() const { return consumer_.next; }

  // The held ATOMIC took effect, the word having held `old` before.
  void answer(uint64_t old) { store_result(consumer_.next, old); }
  // The held ATOMIC was sent to `rank`, which will answer.
  void await_answer(uint32_t rank) {
    add_part();
    entry(consumer_.next).awaits = static_cast<uint16_t>(rank + 1);
    awaiting_ += 1;
  }
  // The answer to the ATOMIC whose ticket ends in `low`; false where `rank` was not asked that.
  bool take_answer(uint32_t low, uint32_t rank, uint64_t old) {
    const uint64_t oldest = retired_.load(std::memory_order_relaxed);
    const uint64_t ticket = oldest + ((low - oldest) & 0xffff);
    if (ticket >= consumer_.next || entry(ticket).awaits != rank + 1) return false;
    store_result(ticket, old);
    answered(ticket);
    return true;
  }
  bool awaits_answers() const { return awaiting_ > 0; }
  // Ends the ATOMICs whose rank is `gone(rank)`: as masked where `reason` is kNone, else as
  // refused.
  template <class Gone>
  void abandon_answers(Refusal reason, Gone&& gone) {
    if (awaiting_ == 0) return;
    for (uint64_t t = retired_.load(std::memory_order_relaxed); t < consumer_.next; ++t) {
      Entry& at = entry(t);
      if (at.awaits == 0 || !gone(at.awaits - 1u)) continue;
      const uint32_t slots = slots_of(at.op);
      at.op = Op::kInvalid;
      if (reason == Refusal::kNone) {
        note_masked(slots);
      } else {
        note_refusal(reason, slots, t);
      }
      answered(t);
    }
  }

  // The held command is posted whole.
  void finish() { pass(held_.slots); }

  // The held command cannot run any more.
  void give_up(Refusal refusal) {
    for (uint32_t i = 0; i <= held_.joined; ++i) {
      entry(consumer_.next + i).op = Op::kInvalid;
      note_refusal(refusal, held_.slots - held_.joined, consumer_.next + i);
    }
    pass(held_.slots);
  }

  // The held command's destination, or this rank, is masked: it completes when its parts have.
  void mask() {
    for (uint32_t i = 0; i <= held_.joined; ++i) {
      entry(consumer_.next + i).op = Op::kInvalid;
      note_masked(held_.slots - held_.joined);
    }
    pass(held_.slots);
  }

  void part_done(uint64_t ticket) { entry(ticket).parts -= 1; }
  // The part will not be heard of, since its destination is masked.
  void part_masked(uint64_t ticket) {
    Entry& at = entry(ticket);
    at.parts -= 1;
    const bool held = holding_ && ticket == consumer_.next;  // mask() will count it
    if (held || at.op == Op::kInvalid) return;
    const uint32_t slots = slots_of(at.op);
    for (uint32_t i = 0; i <= at.joined; ++i) {
      entry(ticket + i).op = Op::kInvalid;
      note_masked(slots);
    }
  }

  // Retires what is complete, in order, and tells the producer. True when something moved.
  bool retire() {
    const uint64_t taken = consumer_.next;
    uint64_t retired = retired_.load(std::memory_order_relaxed);
    const uint64_t before = retired;
    while (retired < taken && entry(retired).parts == 0) {
      count_op(entry(retired).op);
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
  bool visible_at(uint64_t ticket) const {
    Slot ignored;
    return Consumer{consumer_.slots, ticket, depth_}.peek(0, ignored);
  }

  struct Entry {
    uint32_t parts = 0;  // completions still to come
    Op op = Op::kInvalid;
    uint8_t joined = 0;   // entries behind it that have their parts here
    uint16_t awaits = 0;  // 1 + the rank whose answer is among them
  };

  static uint32_t slots_of(Op op) { return op == Op::kCas ? 2 : 1; }
  Entry& entry(uint64_t ticket) { return window_[ticket & (depth_ - 1)]; }

  // The next slots are a command that may run; the second of a CAS is a ticket without a command.
  void hold(uint32_t slots) {
    held_.posted_bytes = held_.serial = 0;
    held_.joined = held_.fused = held_.sent = 0;
    held_.slots = slots;
    held_.entered = held_.announced = false;
    holding_ = true;
    entry(consumer_.next) = {0, held_.command.op};
    if (slots == 2) entry(consumer_.next + 1) = {};
  }

  bool may_join(const Joining& rules) const {
    const bool small = held_.joined > 0 || rules.takes(held_.command.write.units);
    return held_.command.op == Op::kWrite && small && held_.posted_bytes == 0 &&
           held_.joined + 1 < rules.commands;
  }

  bool join_next(const SessionView& view, const Joining& rules) {
    const uint64_t ticket = consumer_.next + held_.slots;
    if (ticket - retired_.load(std::memory_order_relaxed) + 2 > depth_) return false;
    Slot slot;
    Command next;
    if (!consumer_.peek(held_.slots, slot) || op_of(slot.lo) != Op::kWrite) return false;
    // What is refused stays there for take(), which counts it.
    if (check(slot, Slot{}, ticket, index_, view, next) != Refusal::kNone) return false;
    if (!rules.join(held_.command, next)) return false;
    Write& write = held_.command.write;
    write.units += next.write.units;
    if (next.write.advance != 0) {
      held_.fused += write.advance != 0 ? 1 : 0;
      write.signal = next.write.signal;
      write.advance += next.write.advance;
    }
    held_.slots += 1;
    held_.joined += 1;
    entry(consumer_.next).joined = static_cast<uint8_t>(held_.joined);
    entry(ticket) = {0, Op::kWrite};
    count_.joined.add(1);
    return true;
  }

  void pass(uint32_t slots) {
    holding_ = false;
    consumer_.next += slots;
    taken_.store(consumer_.next, std::memory_order_release);  // partner: taken() of another proxy
  }

  // The next slot asks for nothing (any more).
  void pass_over() {
    entry(consumer_.next) = {};
    pass(1);
  }

  void store_result(uint64_t ticket, uint64_t old) {
    AtomicResult& at = results_[ticket & (depth_ - 1)];
    // Partner: whoever reads `done`, `old` and `done` again; 0 is no ticket's.
    platform::store_relaxed(&at.done, 0);
    platform::fence_release();
    platform::store_relaxed(&at.old, old);
    platform::store_release(&at.done, ticket + 1);
  }

  void answered(uint64_t ticket) {
    entry(ticket).awaits = 0;
    entry(ticket).parts -= 1;
    awaiting_ -= 1;
  }

  void note_refusal(Refusal refusal, uint32_t slots, uint64_t ticket) {
    count_.refused[static_cast<size_t>(refusal)].add(1);
    count_.refused_slots[static_cast<size_t>(refusal)].add(slots);
    refused_ += 1;
    platform::store_relaxed(&shared_->last_refused_ticket, ticket);
    platform::store_relaxed(&shared_->last_refused_reason, static_cast<uint64_t>(refusal));
    platform::store_release(&shared_->refused,
                            refused_);  // partner: the pod's look after `completed`
  }

  void note_masked(uint32_t slots) {
    count_.masked.add(1);
    count_.masked_slots.add(slots);
    // Partner: the pod's look after `completed`.
    platform::store_release(&shared_->masked, count_.masked.get());
  }

  void count_op(Op op) {
    if (op == Op::kWrite) return count_.writes.add(1);
    if (op == Op::kSignal) return count_.signals.add(1);
    if (op == Op::kDrain) return count_.drains.add(1);
    if (op == Op::kBarrier) return count_.barriers.add(1);
    if (op == Op::kAdd) return count_.adds.add(1);
    if (op == Op::kCas) return count_.swaps.add(1);
  }

  const uint32_t index_;
  const uint32_t depth_;
  Consumer consumer_;
  RingCounters* const shared_;
  AtomicResult* const results_;
  std::vector<Entry> window_;  // by ticket
  Held held_;
  bool holding_ = false;
  uint32_t awaiting_ = 0;  // ATOMICs whose answer is still to come
  uint64_t refused_ = 0;
  uint64_t told_ = 0;
  std::atomic<uint64_t> taken_{0};
  std::atomic<uint64_t> retired_{0};
  RingCount count_;
};

}  // namespace epfabric::agent
