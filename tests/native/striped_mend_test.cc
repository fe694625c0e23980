// Links striped over lines whose connections break, and whose NICs go for good, under the checker
// that knows the ordering contract: what is sent twice, too late or not at all is seen.
#include <doctest/doctest.h>

#include <cstdio>
#include <optional>

#include "rc_lines.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = StripedGroup;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWanted = 40'000;
#else
constexpr uint64_t kWanted = 300'000;
#endif
constexpr uint64_t kBelowWraps = (uint64_t{1} << 32) - 40;
// A group ends within 100'000 turns or so; a broken one may never.
constexpr Course kGuessed{15'000, 400'000, 20'000};

void break_all(RcLines& lines) {
  for (RcNetwork& network : lines.networks) network.break_all();
}

struct Outcome {
  std::string fault;
  uint64_t posted = 0, breaks = 0, unanswered = 0, late = 0, mended = 0, replayed = 0;
};

Outcome run(uint64_t seed, const Course& course, std::optional<bool> guess = {}) {
  std::minstd_rand random(static_cast<uint32_t>(seed));
  HandShape shape = random_shape(random);
  shape.limits.tries = UINT32_MAX;
  if (random() % 2 == 0) shape.limits.first_sequence = kBelowWraps;
  RcLines lines;
  lines.guess = guess;
  if (random() % 3 == 0) lines.selection = Selection::kRoundRobin;
  const uint32_t count = 2 + random() % 2;
  const uint64_t max_bytes = random_max_bytes(random);
  for (uint32_t i = 0; i < count; ++i) {
    RcRules rules = random_rules(random);
    rules.max_bytes = max_bytes;
    lines.add(seed + i, rules);
  }
  Group group(shape, seed, lines);
  OrderChecker checker(group.sessions(), seed, {});
  Outcome out;
  out.fault = post_until(group, lines, checker, course, random() % course.posts);
  if (random() % 2 == 0) go_dead(lines.networks[random() % count]);
  if (out.fault.empty()) out.fault = play(group, lines, checker, course);
  for (const RcNetwork& network : lines.networks) {
    out.posted += network.posted();
    out.breaks += network.breaks();
    out.unanswered += network.done_unanswered();
    out.late += network.late();
  }
  for (uint32_t rank = 0; rank < group.sessions().size(); ++rank) {
    out.mended += group.count(rank).mended.get();
    out.replayed += group.count(rank).replayed.get();
  }
  return out;
}

}  // namespace

TEST_CASE("lines that break or go for good leave nothing lost, repeated or late") {
  Outcome total;
  uint64_t seeds = 0;
  for (uint64_t one = seed(); total.posted < wanted_operations(kWanted); ++one, ++seeds) {
    const Outcome outcome = run(one, kCourse);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    total.posted += outcome.posted;
    total.breaks += outcome.breaks;
    total.unanswered += outcome.unanswered;
    total.late += outcome.late;
    total.mended += outcome.mended;
    total.replayed += outcome.replayed;
  }
  std::printf(
      "striped_mend_test: %llu operations of %llu groups; %llu connections broke; %llu operations "
      "were done unanswered, %llu came late; %llu link ends mended, %llu operations sent again\n",
      static_cast<unsigned long long>(total.posted), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(total.breaks),
      static_cast<unsigned long long>(total.unanswered),
      static_cast<unsigned long long>(total.late), static_cast<unsigned long long>(total.mended),
      static_cast<unsigned long long>(total.replayed));
  if (total.posted < 300'000) return;  // a few groups may have none
  CHECK(total.mended > 0);
  CHECK(total.unanswered > 0);
  CHECK(total.late > 0);
  CHECK(total.replayed > 0);
}

TEST_CASE("a guess about what failed, either way, is found by the checker") {
  std::string lost, there;
  const auto repeated = [&] { return lost.find("once more") != std::string::npos; };
  for (uint64_t one = seed(); !repeated() && one < seed() + 20; ++one)
    lost = run(one, kGuessed, false).fault;
  for (uint64_t one = seed(); there.empty() && one < seed() + 20; ++one)
    there = run(one, kGuessed, true).fault;
  CHECK_MESSAGE(repeated(), lost);
  CHECK_FALSE(there.empty());
}

// What says to the receiver that a write is there, so that it uses the destination for something
// else: each of these was taken, and no answer came back before the line went.
TEST_CASE("a write that its receiver knows of does not go over another line") {
  for (const std::string how : {"its own signal", "a signal behind it", "an ADD", "a CAS"}) {
    for (const size_t dead : {size_t{0}, size_t{1}}) {
      CAPTURE(how);
      CAPTURE(dead);
      RcLines lines;
      add_calm(lines, 2);
      Group group(HandShape{}, seed(), lines);
      OrderChecker checker(group.sessions(), seed(), {});
      for (RcNetwork& network : lines.networks) network.rules.unanswered = true;
      checker.push_write(0, 0, 1, false, how == "its own signal" ? 100 : 0);
      if (how == "a signal behind it") checker.push_write(0, 0, 1, false, 100);
      if (how == "an ADD" || how == "a CAS") checker.push_atomic(0, 0, 1, how == "a CAS");
      REQUIRE(turn_until(group, checker, kCourse, [&] { return checker.seen(0, 0, 1) > 0; }) == "");
      REQUIRE_FALSE(checker.completed(0));
      go_dead(lines.networks[dead]);
      break_all(lines);
      for (RcNetwork& network : lines.networks) network.rules.unanswered = false;
      CHECK(end_all(group, checker, kCourse) == "");
      uint64_t unanswered = 0;
      for (const RcNetwork& network : lines.networks) unanswered += network.done_unanswered();
      CHECK(unanswered > 0);
    }
  }
}

TEST_CASE("a line whose NIC comes back carries again") {
  RcLines lines;
  add_calm(lines, 2);
  Group group(HandShape{}, seed(), lines);
  OrderChecker checker(group.sessions(), seed(), {});
  RcNetwork& second = lines.networks[1];
  REQUIRE(push_until(group, checker, [&] { return second.posted() > 50; }) == "");
  go_dead(second);
  second.break_all();
  const uint64_t before = lines.networks[0].posted();
  REQUIRE(push_until(group, checker, [&] { return lines.networks[0].posted() > before + 500; }) ==
          "");
  const uint64_t dead = second.posted();
  second.rules.dead = false;
  REQUIRE(push_until(group, checker, [&] { return second.posted() > dead + 500; }) == "");
  CHECK(end_all(group, checker, kCourse) == "");
}

// Greetings pass, and short writes in one case, so that each time it may be met first.
TEST_CASE("a line over which long writes do not pass stays out in the end, and the link goes on") {
  for (const uint64_t longest : {0, 100}) {
    CAPTURE(longest);
    RcLines lines;
    add_calm(lines, 2);
    lines.networks[0].rules.longest = longest;
    lines.networks[0].rules.give_up_one_in = 200;
    const HandShape shape;
    Group group(shape, seed(), lines);
    OrderChecker checker(group.sessions(), seed(), {});
    uint64_t first = 0, second = 0;
    CHECK(push_until(group, checker, [&] {
            if (lines.networks[0].posted() != first) second = lines.networks[1].posted();
            first = lines.networks[0].posted();
            return lines.networks[1].posted() > second + 3000;
          }) == "");
    for (const uint32_t rank : {0, 1}) {
      CHECK(group.count(rank).mended.get() > 0);
      CHECK(group.count(rank).mended.get() <= 2 * shape.limits.tries + 1);  // the bound of each end
    }
    CHECK(end_all(group, checker, kCourse) == "");
  }
}

TEST_CASE("a rank is lost when long writes pass over none of its lines") {
  RcLines lines;
  add_calm(lines, 2);
  for (RcNetwork& network : lines.networks) {
    network.rules.longest = 100;
    network.rules.give_up_one_in = 200;
  }
  Group group(HandShape{}, seed(), lines);
  OrderChecker checker(group.sessions(), seed(), {});
  const std::string why = push_until(group, checker, [] { return false; });
  // Again and again; or each end has given another line up, and they do not meet any more; or its
  // ATOMICs were late before.
  CHECK_MESSAGE(names_cause(why, "its connection broke"), why);
}

// As when its port goes down once more, or its peer's end is given up.
TEST_CASE("a line that is out breaks no other") {
  for (const bool killed : {false, true}) {
    CAPTURE(killed);
    RcLines lines;
    add_calm(lines, 2);
    Group group(HandShape{}, seed(), lines);
    OrderChecker checker(group.sessions(), seed(), {});
    const auto mended = [&] { return group.count(0).mended.get() + group.count(1).mended.get(); };
    RcNetwork &first = lines.networks[0], &second = lines.networks[1];
    go_dead(second);
    second.break_all();
    REQUIRE(push_until(group, checker, [&] { return mended() == 2; }) == "");
    const uint64_t breaks = second.breaks();
    for (int i = 0; i < 10; ++i) {
      second.break_all();
      if (killed) second.kill(0, 1);
      const uint64_t before = first.posted();
      REQUIRE(push_until(group, checker, [&] { return first.posted() > before + 300; }) == "");
    }
    CHECK(second.breaks() > breaks);
    second.rules.dead = false;
    const uint64_t dead = second.posted();
    if (!killed)
      CHECK(push_until(group, checker, [&] { return second.posted() > dead + 500; }) == "");
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(mended() == 2);
  }
}

TEST_CASE("a group whose last line goes ends with a reason that names the rank") {
  HandShape shape;
  shape.limits.stall_ns = 200'000'000;
  RcLines lines;
  add_calm(lines, 2);
  Group group(shape, seed(), lines);
  OrderChecker checker(group.sessions(), seed(), {});
  REQUIRE(push_until(group, checker, [&] { return lines.posted() > 300; }) == "");
  go_dead(lines.networks[0]);
  REQUIRE(push_until(group, checker, [&] { return group.count(0).mended.get() > 0; }) == "");
  go_dead(lines.networks[1]);
  const std::string why = push_until(group, checker, [] { return false; });
  CHECK_MESSAGE(why.find(" lost rank ") != std::string::npos, why);
  CHECK_MESSAGE(names_cause(why, "its connection broke (it broke)"), why);
}

TEST_CASE("a line that is killed for one rank loses none; its last one loses that rank alone") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < kGroups; ++run) {
    CAPTURE(run);
    HandShape shape;
    shape.nodes = {{0}, {1}, {2}};
    shape.mask = true;
    shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
    RcLines lines;
    add_calm(lines, 2);
    Group group(shape, random(), lines);
    OrderChecker checker(group.sessions(), random(), {});
    REQUIRE(post_until(group, lines, checker, kCourse, 300) == "");
    lines.networks[0].kill(0, 2);
    REQUIRE(post_until(group, lines, checker, kCourse, lines.posted() + 300) == "");
    REQUIRE(end_all(group, checker, kCourse) == "");
    CHECK(group.events.take().empty());
    lines.networks[1].kill(0, 2);
    std::vector<Event> events;
    REQUIRE(turn_until(group, checker, kCourse, [&] {
              events = group.events.take();
              return !events.empty();
            }) == "");
    CHECK(events[0].kind == "lost");
    CHECK(events[0].ranks == std::vector<uint32_t>{2});
    CHECK_MESSAGE(events[0].detail.find("it was killed") != std::string::npos, events[0].detail);
    checker.forget(2);
    for (const auto& epoch : group.epochs) epoch->mask({2});
    for (const auto& epoch : group.epochs) epoch->exclude({2});
    CHECK(end_all(group, checker, kCourse) == "");
  }
}

// Rank 1 is its node's delegate: barriers of the others go on over its links.
TEST_CASE("a masked delegate's link goes on over the lines left, and the others' barriers pass") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < kGroups; ++run) {
    CAPTURE(run);
    HandShape shape;
    shape.nodes = {{0}, {1, 2}};
    shape.mask = true;
    shape.limits.tries = UINT32_MAX;
    shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
    RcLines lines;
    for (uint32_t i = 0; i < 2; ++i) lines.add(random(), random_rules(random));
    Group group(shape, random(), lines);
    OrderChecker::Rules pushed;
    pushed.barrier_per_mille = 20;
    OrderChecker checker(group.sessions(), random(), pushed);
    REQUIRE(post_until(group, lines, checker, kCourse, 300) == "");
    break_all(lines);
    int turns = static_cast<int>(random() % 1000);
    REQUIRE(turn_until(group, checker, kCourse, [&] { return turns-- == 0; }) == "");
    checker.forget(1);
    for (const auto& epoch : group.epochs) epoch->mask({1});
    go_dead(lines.networks[random() % 2]);
    break_all(lines);
    for (const auto& epoch : group.epochs) epoch->exclude({1});
    const uint64_t before = checker.barriers();
    REQUIRE(post_until(group, lines, checker, kCourse, lines.posted() + 500) == "");
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(checker.barriers() > before);
  }
}
