// Exact counters of a session: each is written by one proxy only and read by anyone at any time.
// They live in agent memory, never in the segments that a pod sees. Read by Session::counters().
#pragma once

#include <epfabric/command.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace epfabric::agent {

// Grows by its one writer without a locked instruction; readers may be late, never wrong.
class Count {
 public:
  void add(uint64_t amount) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct alignas(64) RingCount {
  Count writes, signals, drains, barriers, adds, swaps;  // completed
  Count joined;                                          // WRITEs sent with the one before
  Count masked, masked_slots;                            // completed without effect
  std::array<Count, static_cast<size_t>(Refusal::kCount)> refused;        // commands, by reason
  std::array<Count, static_cast<size_t>(Refusal::kCount)> refused_slots;  // a CAS has two
};

// What one proxy sent to one destination rank.
struct DestinationCount {
  Count writes, bytes, signals;
};

struct alignas(64) ProxyCount {
  Count turns, sleeps, blocks, inflight, records_sent, records_received;
  Count mended, replayed;  // connections that broke and were made anew; what was sent again
  Count moved;             // of these, that go over another NIC than before
};

// The name of a refusal in metrics and messages; labels of the Refusal enum.
constexpr const char* name_of(Refusal refusal) {
  constexpr const char* kNames[] = {
      "none",
      "bad-op",
      "reserved-flag",
      "unused-field",
      "rank-out-of-group",
      "rank-left",
      "source-out-of-region",
      "destination-out-of-region",
      "signal-out-of-range",
      "no-advance",
      "bad-drain",
      "half-cas",
      "unsupported",
  };
  static_assert(std::size(kNames) == static_cast<size_t>(Refusal::kCount));
  return kNames[static_cast<size_t>(refusal)];
}

}  // namespace epfabric::agent
