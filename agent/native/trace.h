// The id of a barrier's trace, and which barriers are kept as traces. The id follows from group,
// epoch and number, so that all agents know it; the collecting leader alone decides what is kept.
// Used by barrier.h and by Core.
#pragma once

#include <atomic>
#include <cstdint>

namespace epfabric::agent {

struct Id128 {
  uint64_t high = 0, low = 0;
  bool operator==(const Id128&) const = default;
};

namespace detail {
// A bijection of 64 bits in which each bit of the argument changes half of the result's.
constexpr uint64_t scatter(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}
}  // namespace detail

// Never 0, which no trace may have.
constexpr Id128 trace_id_of(const Id128& group, uint32_t epoch, uint64_t barrier) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;  // so that zeros do not stay zero
  uint64_t state = detail::scatter(group.high + kOdd);
  state = detail::scatter((state ^ group.low) + kOdd);
  state = detail::scatter((state ^ epoch) + kOdd);
  const uint64_t high = detail::scatter((state ^ barrier) + kOdd);
  const uint64_t low = detail::scatter((high ^ group.low) + kOdd);
  return {high, (high | low) == 0 ? 1 : low};
}

// Set by Python at any time, asked by leaders' proxies.
class KeepRule {
 public:
  // `ratio` of all barriers, 0-1, chosen by trace id; and those that took at least `slow_ns`
  // (0: none for that).
  void set(double ratio, uint64_t slow_ns) {
    const double bounded = ratio < 0 ? 0 : (ratio > 1 ? 1 : ratio);
    below_.store(static_cast<uint64_t>(bounded * 0x1p63), std::memory_order_relaxed);
    slow_ns_.store(slow_ns, std::memory_order_relaxed);
  }
  bool chooses(const Id128& trace_id) const {
    return (trace_id.low >> 1) < below_.load(std::memory_order_relaxed);
  }
  bool slow(uint64_t took_ns) const {
    const uint64_t slow_ns = slow_ns_.load(std::memory_order_relaxed);
    return slow_ns != 0 && took_ns >= slow_ns;
  }
  bool keeps(const Id128& trace_id, uint64_t took_ns) const {
    return slow(took_ns) || chooses(trace_id);
  }

 private:
  std::atomic<uint64_t> below_{0};  // of 2^63
  std::atomic<uint64_t> slow_ns_{0};
};

}  // namespace epfabric::agent
