// The barrier histogram: which bucket a duration falls into, and that nothing is lost.
#include "histogram.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <thread>

using epfabric::agent::Histogram;

TEST_CASE("a value lies in its bucket (base^i, base^(i+1)] at every scale") {
  const uint64_t seed = std::random_device{}();
  std::printf("histogram_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int scale = 0; scale <= Histogram::kMaxScale; ++scale) {
    for (int i = 0; i < 2000; ++i) {
      const uint64_t ns = 1 + (random() >> (26 + random() % 38));
      const double seconds = static_cast<double>(ns) * 1e-9;
      const int index = Histogram::index_of(ns, scale);
      const double low = std::exp2(std::ldexp(index, -scale));
      const double high = std::exp2(std::ldexp(index + 1, -scale));
      REQUIRE(seconds > low * (1 - 1e-9));
      REQUIRE(seconds <= high * (1 + 1e-9));
    }
  }
}

TEST_CASE("the smallest, the largest and zero are counted") {
  Histogram histogram(5);
  histogram.record(0);
  histogram.record(1);
  histogram.record(~uint64_t{0});
  const auto at = histogram.snapshot();
  CHECK(at.count == 3);
  CHECK(at.zero_count == 1);
  CHECK(at.buckets.front() == 1);
  CHECK(at.buckets.back() == 1);
  CHECK(at.offset == Histogram::index_of(1, 5));
  CHECK(at.min_ns == 0);
  CHECK(at.max_ns == ~uint64_t{0});
}

TEST_CASE("an empty histogram says so") {
  const auto at = Histogram(5).snapshot();
  CHECK(at.count == 0);
  CHECK(at.min_ns == 0);
  CHECK(at.buckets.empty());
}

TEST_CASE("two recording threads lose nothing") {
  Histogram histogram(5);
  constexpr uint64_t kEach = 20000;
  const auto work = [&] {
    for (uint64_t i = 1; i <= kEach; ++i) histogram.record(i * 100);
  };
  std::thread other(work);
  work();
  other.join();
  const auto at = histogram.snapshot();
  CHECK(at.count == 2 * kEach);
  CHECK(at.sum_ns == kEach * (kEach + 1) * 100);
  CHECK(at.max_ns == kEach * 100);
  CHECK(at.min_ns == 100);
}
