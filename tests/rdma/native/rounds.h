// Ranks of two nodes that write to each other over soft RoCE in rounds while rails go and come, and
// look at every byte; for the tests of groups whose NICs go.
#pragma once

#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "cores.h"
#include "ends.h"

namespace epfabric::agent {

inline constexpr uint32_t kRings = 2;
inline constexpr uint64_t kLong = 256 << 10,
                          kShort = 1 << 10;  // what the rings' writes have, in bytes
inline constexpr uint64_t kHalf = 1 << 20;   // of a region: written to from there on

inline GroupShape on_rail(int rail) {
  GroupShape out{{{0}, {1}}, {1, 1}};
  out.rings = kRings;
  out.bytes = 2 * kHalf;
  out.ports = {{port_at('a', rail)}, {port_at('b', rail)}};
  return out;
}

inline uint64_t length_of(uint32_t ring) { return ring == 0 ? kLong : kShort; }
inline uint64_t word_of(uint64_t round, uint32_t source, uint32_t ring, uint64_t i) {
  return (round << 40) + (uint64_t{source} << 36) + (uint64_t{ring} << 32) + i;
}

// One rank's share of a round: a long write and a short one with a signal each; it waits for the
// other's, looks at every byte, drains, meets.
inline bool take_round(RankPod& me, uint32_t own, uint64_t round) {
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    const uint64_t at = ring * kLong;
    auto* words = reinterpret_cast<uint64_t*>(me.memory() + at);
    for (uint64_t i = 0; i < length_of(ring) / 8; ++i) words[i] = word_of(round, own, ring, i);
    Slot slot{};
    const auto from = static_cast<uint32_t>(at / kUnitBytes);
    const auto to = static_cast<uint32_t>((kHalf + at) / kUnitBytes);
    const auto units = static_cast<uint32_t>(length_of(ring) / kUnitBytes);
    if (!pack_write({1 - own, from, to, units, 1, 1}, slot) || !me.push(ring, slot)) return false;
  }
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    const uint64_t* word = me.session->segments().signal(1 - own, ring, 1);
    if (wait_at_least(word, round, me.aborts(), kTestLimitNs) != Waited::kDone) return false;
    const auto* words = reinterpret_cast<const uint64_t*>(me.memory() + kHalf + ring * kLong);
    for (uint64_t i = 0; i < length_of(ring) / 8; ++i) {
      if (words[i] != word_of(round, 1 - own, ring, i)) return false;
    }
    if (!me.run(ring, pack_drain(me.rings[ring].head))) return false;
  }
  return me.run(0, pack_barrier());
}

// Both ranks' rounds.
class Play {
 public:
  explicit Play(CoreGroup& group) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      threads_.emplace_back([this, &pod = group.pods[rank], rank] {
        for (uint64_t round = 1; round <= last_ && !failed_; ++round) {
          if (rank == 0 && enough_) last_ = round;  // before its barrier, so that both know of it
          if (!take_round(pod, rank, round)) failed_ = true;
          if (rank == 0 && !failed_) made_ = round;
        }
      });
    }
  }
  ~Play() { end(); }
  // Waits for so many rounds more, and for `done`; false when one failed, or it takes too long.
  template <class Done>
  bool until(uint64_t rounds, Done&& done) {
    const uint64_t from = made_, begin = platform::clock_ns();
    while (!failed_ && (made_ < from + rounds || !done())) {
      if (platform::clock_ns() - begin > 2 * kTestLimitNs) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return !failed_;
  }
  bool until(uint64_t rounds) {
    return until(rounds, [] { return true; });
  }
  void end() {
    enough_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  bool failed() const { return failed_; }

 private:
  std::atomic<uint64_t> made_{0}, last_{UINT64_MAX};
  std::atomic<bool> enough_{false}, failed_{false};
  std::vector<std::thread> threads_;
};

// Waits until each core has lost the group: one whose rail comes back earlier may mend its end.
inline bool all_failed(const CoreGroup& group) {
  const uint64_t begin = platform::clock_ns();
  for (const auto& core : group.cores) {
    while (core->failure(1).empty()) {
      if (platform::clock_ns() - begin > kTestLimitNs) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

inline constexpr const char* kUp =
    "ip link set va0 up; ip route replace 10.9.0.2 dev va0 src 10.9.0.1 table 101; "
    "ip route replace 10.9.0.1 dev vb0 src 10.9.0.2 table 102";

}  // namespace epfabric::agent
