// How a proxy waits when it has nothing to do: spin shortly, then a timed sleep that doubles from 5
// to 50 µs, then (a second without any activity) block until it is woken, or for a bounded time.
// Used by loop.h only.
#pragma once

#include <epfabric/platform.h>
#include <sched.h>
#include <time.h>

#include <cstdint>

#include "counters.h"

namespace epfabric::agent {

enum class IdleMode : uint8_t { kSpin, kAdaptive };

class Idle {
 public:
  // `crowded`: there are not clearly more cores than proxies, so spinning would starve what we wait
  // for.
  Idle(IdleMode mode, bool crowded) : mode_(mode), spins_(crowded ? 8 : 2000) {}

  void worked() {
    turns_ = 0;
    sleep_ns_ = kFirstSleepNs;
    quiet_since_ns_ = 0;
  }

  // One wait; `now_ns` is read by the caller. `active`: something is outstanding, so do not block.
  // `block()` waits for a wake-up; false where there is something to look at first.
  template <class Block>
  void wait(uint64_t now_ns, bool active, ProxyCount& count, Block&& block) {
    turns_ += 1;
    if (turns_ <= spins_ / 2) {
      platform::spin_hint();
      return;
    }
    if (mode_ == IdleMode::kSpin || turns_ <= spins_) {
      ::sched_yield();
      return;
    }
    if (active || quiet_since_ns_ == 0) quiet_since_ns_ = now_ns;
    const bool quiet = now_ns - quiet_since_ns_ >= kBlockAfterNs;
    if (quiet && block()) {
      count.blocks.add(1);
      return;
    }
    count.sleeps.add(1);
    const timespec nap{0, static_cast<long>(quiet ? kFirstSleepNs : sleep_ns_)};
    ::nanosleep(&nap, nullptr);
    sleep_ns_ = sleep_ns_ * 2 < kLastSleepNs ? sleep_ns_ * 2 : kLastSleepNs;
  }

  static constexpr uint64_t kFirstSleepNs = 5'000;
  static constexpr uint64_t kLastSleepNs = 50'000;
  static constexpr uint64_t kBlockAfterNs = 1'000'000'000;

 private:
  const IdleMode mode_;
  const uint32_t spins_;
  uint32_t turns_ = 0;
  uint64_t sleep_ns_ = kFirstSleepNs;
  uint64_t quiet_since_ns_ = 0;
};

}  // namespace epfabric::agent
