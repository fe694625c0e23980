// How many operations may be under way from one proxy to one rank: more while they complete as fast
// as an idle network lets them, fewer when something of others is in their way. Pure; used by
// remote_transport.h.
#pragma once

#include <algorithm>
#include <cstdint>

namespace epfabric::agent {

// What completions take beyond an idle network's time is judged once a round trip: a cap changes,
// and again only after an operation completed that was posted under it. Additive increase, where
// the cap was what stopped the sender; multiplicative decrease. `ceiling` bounds it always. An idle
// network's time is the least of this window and the one before: routes change, so that what was
// least once need not be for ever.
class Pace {
 public:
  static constexpr uint32_t kFirst = 32, kLeast = 4;
  static constexpr uint64_t kWindowNs = 10'000'000'000;

  explicit Pace(uint32_t ceiling = 0)
      : ceiling_(ceiling), cap_(std::min(kFirst, ceiling)), rising_(true) {}

  uint32_t cap() const { return cap_; }
  // Of the bytes that `bytes` allow at the ceiling.
  uint64_t cap_bytes(uint64_t bytes) const {
    return ceiling_ == 0 ? bytes : std::max<uint64_t>(bytes / ceiling_ * cap_, 1);
  }
  // The sender had more than the cap allows.
  void press() { pressed_ = true; }

  // An operation that was posted at `posted_ns` has completed. `own_ns`: how long the bytes that
  // were under way from here, itself among them, take on the NIC's line.
  void completed(uint64_t now_ns, uint64_t posted_ns, uint64_t own_ns) {
    const uint64_t latency = now_ns - posted_ns;
    const uint64_t beyond = latency > own_ns ? latency - own_ns : 0;
    if (now_ns - window_ns_ > kWindowNs) {
      before_ns_ = least_ns_;
      least_ns_ = kUnknownNs;
      window_ns_ = now_ns;
    }
    least_ns_ = std::min(least_ns_, beyond);
    worst_ns_ = std::max(worst_ns_, beyond);
    if (posted_ns < changed_ns_) return;
    if (worst_ns_ > 2 * std::min(least_ns_, before_ns_) + kSlackNs) {
      cap_ = std::max(std::min(kLeast, ceiling_), cap_ - cap_ / 4);
      rising_ = false;
    } else if (pressed_) {
      cap_ = std::min(ceiling_, rising_ ? 2 * cap_ : cap_ + 1 + cap_ / 32);
    }
    pressed_ = false;
    worst_ns_ = 0;
    changed_ns_ = now_ns + 1;
  }

 private:
  static constexpr uint64_t kSlackNs = 2000, kUnknownNs = UINT64_MAX / 4;

  uint32_t ceiling_;
  uint32_t cap_;
  bool rising_;  // doubles until the first decrease
  bool pressed_ = false;
  uint64_t least_ns_ = kUnknownNs;   // that lay beyond own bytes, in this window
  uint64_t before_ns_ = kUnknownNs;  // the same of the window before
  uint64_t window_ns_ = 0;           // when it began
  uint64_t worst_ns_ = 0;            // of this round trip
  uint64_t changed_ns_ = 0;
};

}  // namespace epfabric::agent
