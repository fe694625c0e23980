// Where the ranks of one node meet in a barrier: a seat for each in agent memory, no network. Each
// rank's proxy 0 enters and leaves; the node's delegate (barrier.h) looks at the seats and
// releases. Barriers have numbers 0, 1, 2, …; number n+1 cannot fill before every rank has left n,
// so two sets of time stamps are enough. An excluded rank is waited for no more; its proxy has to
// have stopped entering by then.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace epfabric::agent {

// What the delegate knows of a barrier when it lets the ranks go.
struct Collected {
  uint64_t began_ns = 0;  // the first rank of any node arrived, as far as is known here
  uint64_t posted_ns = 0;
  uint64_t network_ns = 0;
  uint32_t last_rank = 0;
  bool kept = false;
  bool alone = false;  // see BarrierTimes
};

// Of one barrier; made when it fills. Without ranks (all excluded) the times mean nothing.
struct alignas(64) BarrierStamps {
  std::atomic<uint64_t> first_ns{0};     // the first rank's command was taken
  std::atomic<uint64_t> entered_ns{0};   // the last rank entered
  std::atomic<uint64_t> released_ns{0};  // the delegate let them go
  std::atomic<uint32_t> last_position{0};
  std::atomic<uint32_t> ranks{0};    // that entered
  std::atomic<uint32_t> leaving{0};  // of them, those that have not left yet
  Collected collected;               // written before released(), read after
};

class Meeting {
 public:
  explicit Meeting(uint32_t members) : seats_(members) {}

  uint32_t members() const { return static_cast<uint32_t>(seats_.size()); }
  const BarrierStamps& stamps(uint64_t number) const { return stamps_[number & 1]; }

  // A rank's BARRIER was taken (it may still have work outstanding).
  void announce(uint64_t number, uint32_t position, uint64_t now_ns) {
    seats_[position].announced_ns.store(now_ns, std::memory_order_relaxed);
    seats_[position].announced.store(number + 1, std::memory_order_release);  // partner: waits_ns()
    if (begun_.load(std::memory_order_relaxed) > number) return;
    begun_ns_.store(now_ns, std::memory_order_relaxed);   // of several at once, one stands
    begun_.store(number + 1, std::memory_order_release);  // partner: begun()
  }
  // A rank has nothing outstanding any more.
  void enter(uint64_t number, uint32_t position, uint64_t now_ns) {
    Seat& seat = seats_[position];
    seat.entered_ns.store(now_ns, std::memory_order_relaxed);
    seat.entered.store(number + 1, std::memory_order_release);  // partner: full()
  }

  bool begun(uint64_t number) const { return begun_.load(std::memory_order_acquire) > number; }
  uint64_t begun_ns() const { return begun_ns_.load(std::memory_order_relaxed); }
  // The same without ranks that are excluded by now; 0 = none of the others is there.
  uint64_t waits_ns(uint64_t number) const {
    uint64_t first_ns = 0;
    for (const Seat& seat : seats_) {
      if (seat.announced.load(std::memory_order_acquire) <= number) continue;
      if (seat.excluded.load(std::memory_order_acquire)) continue;
      const uint64_t at_ns = seat.announced_ns.load(std::memory_order_relaxed);
      if (first_ns == 0 || at_ns < first_ns) first_ns = at_ns;
    }
    return first_ns;
  }
  bool has_entered(uint64_t number, uint32_t position) const {
    return seats_[position].entered.load(std::memory_order_acquire) > number;
  }

  // The delegate only: every rank that is not excluded has entered.
  bool full(uint64_t number) {
    if (full_ > number) return true;
    for (; looked_ < seats_.size(); ++looked_) {
      const auto position = static_cast<uint32_t>(looked_);
      if (!has_entered(number, position) && !excluded(position)) return false;
    }
    looked_ = 0;
    full_ = number + 1;
    stamp(number);
    return true;
  }

  void release(uint64_t number, uint64_t now_ns, const Collected& collected = {}) {
    stamps_[number & 1].collected = collected;
    stamps_[number & 1].released_ns.store(now_ns, std::memory_order_relaxed);
    released_.store(number + 1, std::memory_order_release);  // partner: released()
  }
  bool released(uint64_t number) const {
    return released_.load(std::memory_order_acquire) > number;
  }

  // A rank retires its BARRIER. True for the last one, which records the times; for none where one
  // was lost in between: then the delegate records them (barrier.h).
  bool leave(uint64_t number) {
    return stamps_[number & 1].leaving.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

  void exclude(uint32_t position) {
    seats_[position].excluded.store(true, std::memory_order_release);  // partner: excluded()
  }
  bool excluded(uint32_t position) const {
    return seats_[position].excluded.load(std::memory_order_acquire);
  }
  // No rank is left to enter or to leave.
  bool deserted() const {
    for (const Seat& seat : seats_) {
      if (!seat.excluded.load(std::memory_order_acquire)) return false;  // partner: exclude()
    }
    return true;
  }

 private:
  struct alignas(64) Seat {
    std::atomic<uint64_t> entered{0};    // barriers
    std::atomic<uint64_t> announced{0};  // barriers
    std::atomic<uint64_t> announced_ns{0};
    std::atomic<uint64_t> entered_ns{0};
    std::atomic<bool> excluded{false};
  };

  void stamp(uint64_t number) {
    uint64_t first = ~uint64_t{0}, last = 0;
    uint32_t last_position = 0, ranks = 0, leaving = 0;
    for (uint32_t i = 0; i < members(); ++i) {
      if (!has_entered(number, i)) continue;
      ranks += 1;
      leaving += excluded(i) ? 0 : 1;
      const uint64_t announced_ns = seats_[i].announced_ns.load(std::memory_order_relaxed);
      const uint64_t entered_ns = seats_[i].entered_ns.load(std::memory_order_relaxed);
      if (announced_ns < first) first = announced_ns;
      if (entered_ns < last) continue;
      last = entered_ns;
      last_position = i;
    }
    BarrierStamps& stamps = stamps_[number & 1];
    stamps.first_ns.store(first, std::memory_order_relaxed);
    stamps.entered_ns.store(last, std::memory_order_relaxed);
    stamps.last_position.store(last_position, std::memory_order_relaxed);
    stamps.ranks.store(ranks, std::memory_order_relaxed);
    stamps.leaving.store(leaving, std::memory_order_relaxed);
  }

  std::vector<Seat> seats_;  // by position
  std::array<BarrierStamps, 2> stamps_;
  alignas(64) std::atomic<uint64_t> begun_{0};  // barriers
  std::atomic<uint64_t> begun_ns_{0};
  alignas(64) std::atomic<uint64_t> released_{0};  // barriers
  // The delegate's own.
  alignas(64) uint64_t full_ = 0;  // barriers
  size_t looked_ = 0;              // seats of the one that fills
};

}  // namespace epfabric::agent
