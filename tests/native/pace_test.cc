// The cap on what is under way to one rank: grows to the ceiling on an idle network, gives way to
// others, changes at most once a round trip.
#include "pace.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace epfabric::agent;

namespace {

constexpr uint64_t kIdleNs = 10'000, kLineNs = 100;  // of one operation on the line

// One round trip of a sender that always has more: its cap's operations, posted at once; each
// completes behind its own before it and `others_ns` of what others have in the way.
uint64_t round_trip(Pace& pace, uint64_t now_ns, uint64_t others_ns) {
  const uint32_t cap = pace.cap();
  uint64_t end = now_ns;
  for (uint32_t i = 0; i < cap; ++i) {
    pace.press();
    const uint64_t own_ns = (i + 1) * kLineNs;
    end = now_ns + kIdleNs + own_ns + others_ns;
    pace.completed(end, now_ns, own_ns);
  }
  return end;
}

}  // namespace

TEST_CASE("on an idle network the cap grows to the ceiling, own bytes in the way notwithstanding") {
  Pace pace(256);
  uint64_t now = 1'000'000;
  for (int i = 0; i < 20; ++i) now = round_trip(pace, now, 0);
  CHECK(pace.cap() == 256);
  for (int i = 0; i < 500; ++i) now = round_trip(pace, now, 0);
  CHECK(pace.cap() == 256);
}

TEST_CASE("behind others' bytes the cap falls by a quarter a round trip, and comes back after") {
  Pace pace(256);
  uint64_t now = 1'000'000;
  for (int i = 0; i < 20; ++i) now = round_trip(pace, now, 0);
  now = round_trip(pace, now, 50'000);
  CHECK(pace.cap() == 192);
  for (int i = 0; i < 20; ++i) now = round_trip(pace, now, 50'000);
  CHECK(pace.cap() == Pace::kLeast);
  for (int i = 0; i < 300; ++i) now = round_trip(pace, now, 0);
  CHECK(pace.cap() == 256);
}

TEST_CASE("the cap stays small as long as others are in the way, also after thousands of rounds") {
  Pace pace(256);
  uint64_t now = 1'000'000;
  for (int i = 0; i < 20; ++i) now = round_trip(pace, now, 0);
  uint32_t most = 0;
  for (int i = 0; i < 5000; ++i) {
    now = round_trip(pace, now, 50'000);
    if (i > 100) most = std::max(most, pace.cap());
  }
  CHECK(most < 256 / 4);
}

TEST_CASE("a longer route is an idle network's time once the shorter one is two windows past") {
  Pace pace(256);
  uint64_t now = 1'000'000;
  for (int i = 0; i < 20; ++i) now = round_trip(pace, now, 0);
  for (int i = 0; i < 100; ++i) now = round_trip(pace, now, 50'000);
  CHECK(pace.cap() == Pace::kLeast);
  for (int i = 0; i < 300; ++i) now = round_trip(pace, now, 50'000) + Pace::kWindowNs / 50;
  CHECK(pace.cap() == 256);
}

TEST_CASE("the cap changes once a round trip, however many operations complete late in it") {
  Pace pace(64);
  uint64_t now = round_trip(pace, 1'000'000, 0);
  const uint32_t before = pace.cap();
  std::vector<uint32_t> caps;
  for (int i = 0; i < 40; ++i) {
    pace.completed(now + 200'000 + static_cast<uint64_t>(i), now + 10, kLineNs);
    caps.push_back(pace.cap());
  }
  CHECK(caps.front() == before - before / 4);
  CHECK(caps.back() == caps.front());
}

TEST_CASE("who never comes up to the cap does not raise it, and a ceiling below the least holds") {
  Pace idle(256);
  for (uint64_t i = 1; i < 1000; ++i) idle.completed(i * 50'000, i * 50'000 - kIdleNs, kLineNs);
  CHECK(idle.cap() == Pace::kFirst);
  Pace small(2);
  uint64_t now = 1'000'000;
  for (int i = 0; i < 30; ++i) now = round_trip(small, now, i % 2 == 0 ? 0 : 90'000);
  CHECK(small.cap() <= 2);
  CHECK(small.cap() >= 1);
}
