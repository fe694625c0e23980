// Barrier durations by phase, stragglers by rank and the stamps of the last barriers of one group,
// over all its epochs. Filled by proxies, read by Core.
#pragma once

#include <epfabric/command.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "histogram.h"
#include "trail.h"

namespace epfabric::agent {

enum class Phase : uint8_t {
  kArrive,   // first local BARRIER taken → last local rank entered
  kLocal,    // → this node's arrival posted (recorded, on the leader)
  kNetwork,  // → release received (all nodes arrived, on the leader)
  kRelease,  // → last local rank released
  kTotal,
  kCount,
};

constexpr std::array<const char*, static_cast<size_t>(Phase::kCount)> kPhaseNames = {
    "arrive", "local", "network", "release", "total"};

class BarrierStats {
 public:
  // `rails`: with statistics of their own for barriers along rails, of which no stamps are kept.
  explicit BarrierStats(int scale, bool rails = true)
      : phases_{Histogram(scale), Histogram(scale), Histogram(scale), Histogram(scale),
                Histogram(scale)},
        last_(kMaxRanks),
        rails_(rails ? std::make_unique<BarrierStats>(scale, false) : nullptr) {}

  // A stamp of another thread may be a moment later than ours; that counts as zero.
  void record(Phase phase, uint64_t from_ns, uint64_t to_ns) {
    phases_[static_cast<size_t>(phase)].record(to_ns > from_ns ? to_ns - from_ns : 0);
  }
  void straggler(uint32_t rank) {
    if (rank < last_.size()) last_[rank].fetch_add(1, std::memory_order_relaxed);
  }

  // By the last rank of the node to leave a barrier.
  void finished(const BarrierTimes& times) {
    record(Phase::kRelease, times.network_ns, times.left_ns);
    record(Phase::kTotal, times.first_ns, times.left_ns);
    last_barriers_.add(times);
    if (times.kept) keep(times);
  }
  void keep(const BarrierTimes& times) { kept_.add(times); }
  // A barrier that was only found to be slow when the next one was over.
  void keep_after(const Id128& group, uint32_t epoch, uint64_t number) {
    BarrierTimes times;
    if (!last_barriers_.find(group, epoch, number, times) || times.kept) return;
    times.kept = true;
    keep(times);
  }

  BarrierStats& rails() { return *rails_; }
  const Histogram& phase(Phase phase) const { return phases_[static_cast<size_t>(phase)]; }
  const Trail& last_barriers() const { return last_barriers_; }
  const Trail& kept() const { return kept_; }
  uint64_t stragglers(uint32_t rank) const { return last_[rank].load(std::memory_order_relaxed); }

 private:
  std::array<Histogram, static_cast<size_t>(Phase::kCount)> phases_;
  std::vector<std::atomic<uint64_t>> last_;
  std::unique_ptr<BarrierStats> rails_;
  Trail last_barriers_;
  Trail kept_;  // of its own, so that many barriers that nobody keeps push none of these out
};

}  // namespace epfabric::agent
