// Where the ranks of one node meet in a barrier: counters in agent memory, no network. Each rank's
// proxy 0 enters and leaves; the node's delegate (barrier.h) releases. Barriers have numbers 0, 1,
// 2, …; number n+1 cannot fill before every rank has left n, so two sets of time stamps are enough.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

namespace epfabric::agent {

struct BarrierStamps {
  std::atomic<uint64_t> first_ns{0};     // the first rank's command was taken
  std::atomic<uint64_t> entered_ns{0};   // the last rank entered
  std::atomic<uint64_t> released_ns{0};  // the delegate let them go
  std::atomic<uint32_t> last_position{0};
};

class Meeting {
 public:
  explicit Meeting(uint32_t members)
      : members_(members), entered_(std::make_unique<std::atomic<uint64_t>[]>(members)) {}

  uint32_t members() const { return static_cast<uint32_t>(members_); }
  const BarrierStamps& stamps(uint64_t number) const { return stamps_[number & 1]; }

  // A rank's BARRIER was taken (it may still have work outstanding).
  void announce(uint64_t number, uint64_t now_ns) {
    if (announced_.fetch_add(1, std::memory_order_acq_rel) != number * members_) return;
    stamps_[number & 1].first_ns.store(now_ns, std::memory_order_relaxed);
    begun_.store(number + 1, std::memory_order_release);  // partner: begun()
  }

  // A rank has nothing outstanding any more. True for the last one.
  bool enter(uint64_t number, uint32_t position, uint64_t now_ns) {
    entered_[position].store(number + 1, std::memory_order_relaxed);
    if (inside_.fetch_add(1, std::memory_order_acq_rel) + 1 != (number + 1) * members_)
      return false;
    stamps_[number & 1].entered_ns.store(now_ns, std::memory_order_relaxed);
    stamps_[number & 1].last_position.store(position, std::memory_order_relaxed);
    full_.store(number + 1, std::memory_order_release);  // partner: full()
    return true;
  }

  bool begun(uint64_t number) const { return begun_.load(std::memory_order_acquire) > number; }
  bool full(uint64_t number) const { return full_.load(std::memory_order_acquire) > number; }
  bool has_entered(uint64_t number, uint32_t position) const {
    return entered_[position].load(std::memory_order_relaxed) > number;
  }

  void release(uint64_t number, uint64_t now_ns) {
    stamps_[number & 1].released_ns.store(now_ns, std::memory_order_relaxed);
    released_.store(number + 1, std::memory_order_release);  // partner: released()
  }
  bool released(uint64_t number) const {
    return released_.load(std::memory_order_acquire) > number;
  }

  // A rank retires its BARRIER. True for the last one, which records the times.
  bool leave(uint64_t number) {
    return outside_.fetch_add(1, std::memory_order_acq_rel) + 1 == (number + 1) * members_;
  }

 private:
  const uint64_t members_;
  std::unique_ptr<std::atomic<uint64_t>[]> entered_;  // by position: barriers entered
  std::array<BarrierStamps, 2> stamps_;
  alignas(64) std::atomic<uint64_t> announced_{0};  // cumulative over all barriers, as the next two
  alignas(64) std::atomic<uint64_t> inside_{0};
  alignas(64) std::atomic<uint64_t> outside_{0};
  alignas(64) std::atomic<uint64_t> begun_{0};  // barriers, as the next two
  alignas(64) std::atomic<uint64_t> full_{0};
  alignas(64) std::atomic<uint64_t> released_{0};
};

}  // namespace epfabric::agent
