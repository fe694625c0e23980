// Exponential histogram of durations with a fixed set of buckets and atomic counts: bucket i of
// scale s holds (base^i, base^(i+1)] seconds, base = 2^(2^-s). From under 1 ns to 1,024 s. Filled
// by proxies, read by Python.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

namespace epfabric::agent {

class Histogram {
 public:
  static constexpr int kMinExponent = -30;  // 2^-30 s is just below 1 ns
  static constexpr int kMaxExponent = 10;
  static constexpr int kMaxScale = 8;

  explicit Histogram(int scale)
      : scale_(scale), buckets_(static_cast<size_t>(kMaxExponent - kMinExponent) << scale) {}

  int scale() const { return scale_; }
  int offset() const { return kMinExponent * (1 << scale_); }

  // Index of the bucket that holds `ns` > 0, before clamping.
  static int index_of(uint64_t ns, int scale) {
    const double seconds = static_cast<double>(ns) * 1e-9;
    return static_cast<int>(std::ceil(std::ldexp(std::log2(seconds), scale))) - 1;
  }

  void record(uint64_t ns) {
    sum_.fetch_add(ns, std::memory_order_relaxed);
    raise(max_, ns);
    lower(min_, ns);
    if (ns == 0) {
      zeros_.fetch_add(1, std::memory_order_release);  // partner: snapshot(), as the buckets'
      return;
    }
    const int last = static_cast<int>(buckets_.size()) - 1;
    const int at = index_of(ns, scale_) - offset();
    const int bucket = at < 0 ? 0 : (at > last ? last : at);
    buckets_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_release);
  }

  struct Snapshot {
    uint64_t count = 0, sum_ns = 0, min_ns = 0, max_ns = 0, zero_count = 0;
    int scale = 0, offset = 0;
    std::vector<uint64_t> buckets;  // trimmed at both ends
  };

  // Consistent in itself: `count` is the sum of what the buckets say, and sum, least and most hold
  // at least what is counted.
  Snapshot snapshot() const {
    Snapshot out;
    out.scale = scale_;
    out.zero_count = out.count = zeros_.load(std::memory_order_acquire);
    std::vector<uint64_t> all;
    for (const auto& bucket : buckets_) all.push_back(bucket.load(std::memory_order_acquire));
    size_t first = 0, end = all.size();
    while (first < end && all[first] == 0) ++first;
    while (end > first && all[end - 1] == 0) --end;
    out.offset = offset() + static_cast<int>(first);
    out.buckets.assign(all.begin() + static_cast<std::ptrdiff_t>(first),
                       all.begin() + static_cast<std::ptrdiff_t>(end));
    for (const uint64_t n : out.buckets) out.count += n;
    if (out.count == 0) return out;
    out.sum_ns = sum_.load(std::memory_order_relaxed);
    out.min_ns = min_.load(std::memory_order_relaxed);
    out.max_ns = max_.load(std::memory_order_relaxed);
    return out;
  }

 private:
  static void raise(std::atomic<uint64_t>& word, uint64_t value) {
    uint64_t seen = word.load(std::memory_order_relaxed);
    while (seen < value && !word.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }
  static void lower(std::atomic<uint64_t>& word, uint64_t value) {
    uint64_t seen = word.load(std::memory_order_relaxed);
    while (seen > value && !word.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
  }

  const int scale_;
  std::vector<std::atomic<uint64_t>> buckets_;
  std::atomic<uint64_t> sum_{0}, zeros_{0}, max_{0}, min_{~uint64_t{0}};
};

}  // namespace epfabric::agent
