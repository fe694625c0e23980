// The producing end of one ring for a CPU process: batching, bounded waits; used by module.cc.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "segments.h"

namespace epfabric::host {

// What the agent says about the refused commands of a ring.
struct Refused {
  uint64_t count;
  uint64_t last_ticket;
  uint64_t last_reason;
};

// Thrown where two threads use one ring at once: a ring has a single producer.
struct RingBusy {};

class Ring {
 public:
  // Continues at ticket 0: a session's rings are new. `batch` ≤ kMaxBatch.
  Ring(std::shared_ptr<Segments> segments, uint32_t index, uint32_t batch);

  // Adds one command to the open batch; when that is full it is published first. The command's
  // ticket comes back in `ticket`. Anything but kDone means that the command was not accepted.
  Waited add(const Slot& command, uint64_t timeout_ns, uint64_t& ticket);

  // The same with a command of two slots, whose ticket is the first one's.
  Waited add_pair(const Slot (&pair)[2], uint64_t timeout_ns, uint64_t& ticket);

  // Publishes the open batch.
  Waited flush(uint64_t timeout_ns);

  // Pushes all commands of a list in batches; `pushed` counts those that got in.
  Waited push(std::span<const Slot> commands, uint64_t timeout_ns, uint64_t& pushed);

  // Publishes the open batch, then waits until `ticket` is completed.
  Waited wait(uint64_t ticket, uint64_t timeout_ns);

  uint64_t next_ticket() const { return producer_.head + pending_; }
  uint64_t completed() const;
  uint64_t tail() const;
  Refused refused() const;
  // What the word of the ATOMIC held before it; nothing where it is not complete, ended without an
  // answer (it may have been applied all the same), or its place was taken by a later one.
  std::optional<uint64_t> result(uint64_t ticket) const;
  const Segments& segments() const { return *segments_; }

 private:
  Waited collect(const Slot* commands, uint32_t count, uint64_t timeout_ns, uint64_t& ticket);
  Waited publish(const Slot* commands, uint32_t count, uint64_t timeout_ns);

  // One thread at a time, checked: the owner may be inside a wait without the interpreter's lock.
  class Holder {
   public:
    explicit Holder(std::atomic_flag& flag) : flag_(flag) {
      // Partner: clear() below, by the thread that used the ring before.
      if (flag_.test_and_set(std::memory_order_acquire)) throw RingBusy{};
    }
    ~Holder() { flag_.clear(std::memory_order_release); }
    Holder(const Holder&) = delete;
    Holder& operator=(const Holder&) = delete;

   private:
    std::atomic_flag& flag_;
  };

  std::shared_ptr<Segments> segments_;
  const RingCounters* counters_;
  const AtomicResult* results_;
  Producer producer_;
  uint32_t batch_;
  uint32_t pending_ = 0;
  Slot open_[kMaxBatch] = {};
  std::atomic_flag held_ = ATOMIC_FLAG_INIT;
};

}  // namespace epfabric::host
