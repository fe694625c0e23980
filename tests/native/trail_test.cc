// The trail of a node's last barriers, the ids of their traces, and the rule that keeps some.
#include "trail.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <random>
#include <set>
#include <thread>

using namespace epfabric::agent;

namespace {

// Every field follows from the number, so that a torn entry shows.
BarrierTimes times_of(uint64_t n) {
  const bool leads = n % 3 == 0, kept = n % 5 == 0;
  const auto number = static_cast<uint32_t>(n);
  return {{n, ~n}, n,     number, number * 7, leads, kept, n + 1,
          n + 2,   n + 3, n + 4,  n + 5,      n + 6, n + 7};
}

bool same(const BarrierTimes& a, const BarrierTimes& b) {
  return a.group == b.group && a.number == b.number && a.epoch == b.epoch &&
         a.last_rank == b.last_rank && a.leads == b.leads && a.kept == b.kept &&
         a.began_ns == b.began_ns && a.first_ns == b.first_ns && a.entered_ns == b.entered_ns &&
         a.posted_ns == b.posted_ns && a.network_ns == b.network_ns &&
         a.released_ns == b.released_ns && a.left_ns == b.left_ns;
}

}  // namespace

TEST_CASE(
    "what is taken in parts is all there was, in order, and what was overwritten is counted") {
  Trail trail;
  CHECK(trail.take(0, 10).barriers.empty());
  for (uint64_t n = 0; n < 100; ++n) trail.add(times_of(n));
  uint64_t position = 0;
  for (uint64_t n = 0; n < 100; n += 25) {
    const Trail::Taken taken = trail.take(position, 25);
    REQUIRE(taken.barriers.size() == 25);
    CHECK(taken.overwritten == 0);
    for (uint64_t i = 0; i < 25; ++i) CHECK(same(taken.barriers[i], times_of(n + i)));
    position = taken.position;
  }
  CHECK(trail.take(position, 25).barriers.empty());
  for (uint64_t n = 100; n < 100 + Trail::kCapacity + 7; ++n) trail.add(times_of(n));
  const Trail::Taken taken = trail.take(position, 1u << 20);
  CHECK(taken.overwritten == 7);
  REQUIRE(taken.barriers.size() == Trail::kCapacity);
  CHECK(taken.barriers.front().number == 107);
  CHECK(taken.barriers.back().number == taken.position - 1);
}

TEST_CASE("a reader of a trail that moves on sees whole entries, and each once or counted") {
  using Short = TrailOf<2>;  // so that the writer often comes round while an entry is read
  constexpr uint64_t kSeen = 300'000;
  constexpr auto kLongest = std::chrono::seconds(1);  // a busy machine lets few be seen
  Short trail;
  std::atomic<bool> enough{false};
  uint64_t written = 0;
  std::thread writer([&] {
    while (!enough.load()) trail.add(times_of(written++));
  });
  const auto end = std::chrono::steady_clock::now() + kLongest;
  uint64_t position = 0, seen = 0, overwritten = 0, next = 0, torn = 0;
  const auto look = [&] {
    const Short::Taken taken = trail.take(position, Short::kCapacity);
    position = taken.position;
    overwritten += taken.overwritten;
    for (const BarrierTimes& times : taken.barriers) {
      torn += times.number < next || !same(times, times_of(times.number));
      next = times.number + 1;
      seen += 1;
    }
  };
  while (seen < kSeen && std::chrono::steady_clock::now() < end) look();
  const uint64_t meanwhile = seen;
  enough.store(true);
  writer.join();
  look();
  CHECK(torn == 0);
  CHECK(meanwhile > 0);
  CHECK(position == written);
  CHECK(seen + overwritten == written);
}

TEST_CASE("trace ids differ in everything that they are made of, and are never zero") {
  std::set<std::pair<uint64_t, uint64_t>> seen;
  uint64_t made = 0;
  for (const Id128& group : {Id128{}, Id128{0, 1}, Id128{1, 0}, Id128{1, 1}}) {
    for (uint32_t epoch = 0; epoch < 8; ++epoch) {
      for (uint64_t number = 0; number < 1000; ++number) {
        const Id128 id = trace_id_of(group, epoch, number);
        REQUIRE((id.high | id.low) != 0);
        seen.emplace(id.high, id.low);
        made += 1;
      }
    }
  }
  CHECK(seen.size() == made);
}

TEST_CASE("the rule keeps that part of the barriers, always the same ones, and the slow ones") {
  const uint64_t seed = std::random_device{}();
  std::printf("trail_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const Id128 group{random(), random()};
  KeepRule rule, wider;
  const auto kept = [&](const KeepRule& of, uint64_t took_ns) {
    uint64_t out = 0;
    for (uint64_t n = 0; n < 100'000; ++n) out += of.keeps(trace_id_of(group, 1, n), took_ns);
    return out;
  };
  CHECK(kept(rule, ~uint64_t{0}) == 0);
  rule.set(1, 0);
  CHECK(kept(rule, 0) == 100'000);
  rule.set(0.1, 0);
  CHECK(kept(rule, ~uint64_t{0}) > 9'000);  // 10,000 ± 10 standard deviations
  CHECK(kept(rule, ~uint64_t{0}) < 11'000);
  wider.set(0.2, 0);
  for (uint64_t n = 0; n < 10'000; ++n) {
    const Id128 id = trace_id_of(group, 1, n);
    REQUIRE((!rule.keeps(id, 0) || wider.keeps(id, 0)));
  }
  rule.set(0, 1000);
  CHECK(kept(rule, 999) == 0);
  CHECK(kept(rule, 1000) == 100'000);
}
