// Links over several NICs of which one fails as a device, under the checker that knows the ordering
// contract.
#include <doctest/doctest.h>

#include "rc_lines.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

// The checker looks after each of so many turns.
template <class Group>
std::string take_turns(Group& group, OrderChecker& checker, int turns) {
  return turn_until(group, checker, kCourse, [&] { return turns-- == 0; });
}

}  // namespace

// What it does not tell of was done or not, and arrives late or not.
TEST_CASE("a NIC that fails as a device takes its lines along, and no write or rank") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < 30; ++run) {
    CAPTURE(run);
    HandShape shape = random_shape(random);
    shape.limits.tries = UINT32_MAX;
    RcLines lines;
    for (uint32_t i = 0; i < 2; ++i) lines.add(random(), random_rules(random));
    StripedGroup group(shape, random(), lines);
    OrderChecker checker(group.sessions(), random(), {});
    REQUIRE(post_until(group, lines, checker, kCourse, 200 + random() % 1000) == "");
    lines.networks[random() % 2].fail_device(random() % group.sessions().size(), Failing::kTold);
    REQUIRE(post_until(group, lines, checker, kCourse, lines.posted() + 1000) == "");
    CHECK(end_all(group, checker, kCourse) == "");
  }
}

TEST_CASE("a NIC of which nothing comes any more, not even what failed, takes no rank along") {
  constexpr Course kLong{0, 400'000, 1'000'000};
  RcLines lines;
  add_calm(lines, 2);
  StripedGroup group(HandShape{}, seed(), lines);
  OrderChecker checker(group.sessions(), seed(), {});
  REQUIRE(post_until(group, lines, checker, kCourse, 300) == "");
  lines.networks[0].fail_device(0, Failing::kSilent);
  const uint64_t before = lines.networks[1].posted();
  const auto goes_on = [&] {
    return group.count(0).mended.get() > 0 && lines.networks[1].posted() > before + 500;
  };
  CHECK(push_until(group, checker, goes_on, kLong) == "");
  CHECK(end_all(group, checker, kLong) == "");
}

// As when the peer's process stands still: nobody takes its receives from either NIC.
TEST_CASE("lines that stood still together, and go on one before the other, do not break") {
  constexpr uint64_t kBeatNs = 11'000'000;  // of a proxy; longer than its link looks for peers
  RcLines lines;
  add_calm(lines, 2);
  HandShape shape;
  shape.limits.stall_ns = 100'000'000'000;
  StripedGroup group(shape, seed(), lines);
  OrderChecker checker(group.sessions(), seed(), {});
  REQUIRE(push_until(group, checker, [&] {
            return lines.networks[0].under_way() > 8 && lines.networks[1].under_way() > 8;
          }) == "");
  for (RcNetwork& network : lines.networks) network.rules.still = true;
  const auto look_all = [&](int times) {
    for (int i = 0; i < times; ++i) {
      group.pass_time(kBeatNs);
      for (const size_t rank : {0, 1}) group.turn_of(rank);
      checker.look();
    }
  };
  look_all(600);
  lines.networks[0].rules.still = false;
  look_all(100);
  lines.networks[1].rules.still = false;
  CHECK(end_all(group, checker, kCourse) == "");
  for (const uint32_t rank : {0, 1}) CHECK(group.count(rank).mended.get() == 0);
}

// A peer may know of writes that this queue did not tell of, and use their sources again.
TEST_CASE("a queue that cannot be polled costs the rank at once if it held what was acknowledged") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  uint64_t lost = 0;
  for (int run = 0; run < 40; ++run) {
    CAPTURE(run);
    RcLines lines;
    add_calm(lines, 2);
    StripedGroup group(HandShape{}, random(), lines);
    OrderChecker checker(group.sessions(), random(), {});
    const bool idle = run % 2 == 0;
    REQUIRE(post_until(group, lines, checker, kCourse, 300 + random() % 300) == "");
    if (idle) REQUIRE(end_all(group, checker, kCourse) == "");
    RcNetwork& network = lines.networks[0];
    if (!idle) network.rules.polled = 0;  // what comes meanwhile lies in the queue
    REQUIRE(take_turns(group, checker, 1000) == "");
    network.rules.polled = 64;
    const uint64_t begin_ns = group.now_ns();
    network.fail_device(0, Failing::kUnreadable);
    std::string why = post_until(group, lines, checker, kCourse, lines.posted() + 500);
    if (why.empty()) why = end_all(group, checker, kCourse);
    lost += why.empty() ? 0 : 1;
    CAPTURE(why);
    if (idle) {
      CHECK(why == "");
    } else if (!why.empty()) {
      CHECK(why.find("its NIC acknowledged writes and lost them") != std::string::npos);
      CHECK(group.now_ns() - begin_ns < Limits{}.stall_ns);
    }
  }
  CHECK(lost > 0);
}

TEST_CASE("a NIC that stands by, or was left, fails nothing when its queue cannot be read") {
  for (const bool left : {false, true}) {
    CAPTURE(left);
    Nics nics;
    add_calm(nics, 2);
    StandbyGroup group(HandShape{}, seed(), nics);
    OrderChecker checker(group.sessions(), seed(), {});
    RcNetwork &first = nics.networks[0], &second = nics.networks[1];
    const auto moved = [&] { return group.count(0).moved.get() + group.count(1).moved.get(); };
    if (left) {
      go_dead(first);
      REQUIRE(push_until(group, checker, [&] { return moved() == 2; }) == "");
    }
    (left ? first : second).fail_device(0, Failing::kUnreadable);
    REQUIRE(push_more(group, checker, left ? second : first) == "");
    CHECK(end_all(group, checker, kCourse) == "");
    if (left) continue;
    go_dead(first);
    const std::string why = push_until(group, checker, [] { return false; });
    CHECK_MESSAGE(why.find(" lost rank ") != std::string::npos, why);
    CHECK(second.posted() == 0);
  }
}

TEST_CASE("a NIC that fails as a device ends the links that use it alone, which go nowhere else") {
  for (const Failing how : {Failing::kTold, Failing::kUnreadable}) {
    Nics nics;
    add_calm(nics, 2);
    StandbyGroup group(HandShape{}, seed(), nics);
    OrderChecker checker(group.sessions(), seed(), {});
    REQUIRE(push_more(group, checker, nics.networks[0]) == "");
    const uint64_t begin_ns = group.now_ns();
    nics.networks[0].fail_device(0, how);
    const std::string why = push_until(group, checker, [] { return false; });
    const std::string reason = how == Failing::kTold ? "rank 0 lost rank 1: its NIC failed"
                                                     : "the completion queue failed: ";
    CHECK_MESSAGE(why.find(reason) != std::string::npos, why);
    CHECK(group.now_ns() - begin_ns < Limits{}.stall_ns);
    CHECK(nics.networks[1].posted() == 0);
  }
}
