// Which line takes the next write, by itself: lines of different speed, a line that stands still,
// and the ports that a proxy's lines are made of.
#include "stripes.h"

#include <doctest/doctest.h>

#include <deque>

using namespace epfabric::agent;

namespace {

constexpr Stripes::Bytes kNobody{};

// Lines that carry one write after the other, in a time of their own.
struct Model {
  struct Line {
    uint64_t ns_per_kib;
    uint64_t free_ns = 0;
    std::deque<std::pair<uint64_t, uint64_t>> under_way{};  // when it is through, bytes
  };
  std::vector<Line> lines;
  Stripes stripes;
  uint64_t now_ns = 0;

  explicit Model(std::initializer_list<uint64_t> ns_per_kib)
      : stripes(static_cast<uint32_t>(ns_per_kib.size())) {
    for (const uint64_t price : ns_per_kib) lines.push_back({price});
  }
  uint32_t post(uint64_t bytes) {
    const uint32_t at = stripes.choose(bytes, stripes.up(), kNobody);
    Line& line = lines[at];
    stripes.posted(at, bytes);
    line.free_ns = std::max(line.free_ns, now_ns) + bytes * line.ns_per_kib / 1024;
    line.under_way.emplace_back(line.free_ns, bytes);
    return at;
  }
  // Until the next write is through; false when nothing is under way.
  bool step() {
    uint32_t next = kMaxLines;
    for (uint32_t i = 0; i < lines.size(); ++i) {
      if (lines[i].under_way.empty()) continue;
      if (next == kMaxLines ||
          lines[i].under_way.front().first < lines[next].under_way.front().first)
        next = i;
    }
    if (next == kMaxLines) return false;
    now_ns = lines[next].under_way.front().first;
    stripes.completed(next, lines[next].under_way.front().second);
    lines[next].under_way.pop_front();
    return true;
  }
};

double share_of(const Model& model, uint32_t line) {
  return static_cast<double>(model.stripes.share(line)) /
         static_cast<double>(model.stripes.shares());
}

}  // namespace

TEST_CASE("lines that are always busy are found as fast as they are") {
  Model model({80, 160, 240});
  for (int i = 0; i < 64; ++i) model.post(kStripeBytes);
  for (int i = 0; i < 2000; ++i) {
    REQUIRE(model.step());
    model.post(kStripeBytes);
  }
  CHECK(share_of(model, 0) == doctest::Approx(6.0 / 11).epsilon(0.2));
  CHECK(share_of(model, 1) == doctest::Approx(3.0 / 11).epsilon(0.3));
  CHECK(share_of(model, 2) == doctest::Approx(2.0 / 11).epsilon(0.4));
}

TEST_CASE("one long WRITE after the other ends on all lines at about the same time") {
  Model model({80, 160});
  uint64_t last_ns = 0;
  for (int write = 0; write < 100; ++write) {
    const uint64_t begin_ns = model.now_ns;
    for (int stripe = 0; stripe < 16; ++stripe) model.post(kStripeBytes);
    while (model.step()) {
    }
    last_ns = model.now_ns - begin_ns;
  }
  const uint64_t alone_ns = 16 * kStripeBytes * 80 / 1024;
  CHECK(last_ns * 4 < alone_ns * 3);  // a third less than over the fast one alone, but for a stripe
}

TEST_CASE("a line that stands still gets no more once others would be through earlier") {
  Model model({80, 80});
  for (int i = 0; i < 8; ++i) model.post(kStripeBytes);
  model.lines[1].under_way.clear();  // it completes nothing of it any more
  int taken = 0;
  for (int i = 0; i < 1000; ++i) {
    model.step();
    taken += model.post(kStripeBytes) == 1 ? 1 : 0;
    model.lines[1].under_way.clear();
  }
  CHECK(taken < 4);
}

TEST_CASE("a line that was slow for a while gets its part again") {
  Model model({80, 8000});
  const auto go = [&model](int writes) {
    for (int i = 0; i < writes && model.step(); ++i) model.post(kStripeBytes);
  };
  for (int i = 0; i < 128; ++i) model.post(kStripeBytes);
  go(4000);
  CHECK(share_of(model, 1) < 0.1);
  model.lines[1].ns_per_kib = 80;
  go(20'000);
  CHECK(share_of(model, 1) > 0.35);
}

TEST_CASE("of idle lines the one takes a write that carries less to others") {
  Stripes stripes(3);
  CHECK(stripes.choose(64, stripes.up(), {10, 5, 20}) == 1);
  CHECK(stripes.choose(64, 0b101, {10, 5, 20}) == 0);
}

TEST_CASE("lines that are out take nothing and hold no comparison up, and carry once they join") {
  Stripes stripes(3, Selection::kLeastInflight, 0b011);
  const uint64_t before = stripes.share(0);
  for (int i = 0; i < 1000; ++i) {
    CHECK(stripes.choose(kStripeBytes, stripes.up(), kNobody) != 2);
    stripes.posted(0, kStripeBytes);
    stripes.posted(1, kStripeBytes);
    stripes.completed(0, kStripeBytes);
    stripes.completed(1, kStripeBytes);
    if (i == 1) CHECK(stripes.share(0) > before);
  }
  stripes.add(2);
  stripes.posted(0, kStripeBytes);
  stripes.posted(1, kStripeBytes);
  CHECK(stripes.choose(kStripeBytes, stripes.up(), kNobody) == 2);
}

TEST_CASE("in turn each line takes a write, but for those that are full") {
  Stripes stripes(3, Selection::kRoundRobin);
  for (const uint32_t line : {0u, 1u, 2u, 0u}) {
    CHECK(stripes.choose(64, stripes.up(), kNobody) == line);
    stripes.posted(line, 64);
  }
  CHECK(stripes.choose(64, 0b101, kNobody) == 2);
}

TEST_CASE("proxies stripe over the ports in turn, each port once") {
  CHECK(lines_of(0, 2, 2) == std::vector<uint32_t>{0, 1});
  CHECK(lines_of(1, 2, 2) == std::vector<uint32_t>{0, 1});
  CHECK(lines_of(0, 2, 4) == std::vector<uint32_t>{0, 1});
  CHECK(lines_of(1, 2, 4) == std::vector<uint32_t>{2, 3});
  CHECK(lines_of(1, 2, 3) == std::vector<uint32_t>{0, 2});
  CHECK(lines_of(5, 8, 1) == std::vector<uint32_t>{0});
  CHECK(lines_of(3, 100, 100).size() == kMaxLines);
}
