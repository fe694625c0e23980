// Links that use one NIC at a time, whose NICs go for good and come back, under order_checker.h.
#include <doctest/doctest.h>

#include <cstdio>

#include "rc_lines.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = StandbyGroup;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWanted = 40'000;
#else
constexpr uint64_t kWanted = 300'000;
#endif
constexpr uint64_t kBelowWraps = (uint64_t{1} << 32) - 40;

void go_mute(RcNetwork& nic) {
  nic.rules.longest = 0;
  nic.rules.give_up_one_in = 200;
}
void come_back(RcNetwork& nic) {
  nic.rules.dead = false;
  nic.rules.give_up_one_in = 0;
}

struct Outcome {
  std::string fault;
  uint64_t posted = 0, breaks = 0, unanswered = 0, late = 0, moved = 0, replayed = 0;
};

Outcome run(uint64_t seed, bool belated = false) {
  std::minstd_rand random(static_cast<uint32_t>(seed));
  HandShape shape = random_shape(random);
  shape.limits.tries = random() % 2 == 0 ? UINT32_MAX : 1000;
  if (random() % 2 == 0) shape.limits.first_sequence = kBelowWraps;
  Nics nics;
  nics.belated = belated;
  nics.patience = 1 + random() % 8;
  const uint32_t count = 2 + random() % 2;
  const uint64_t max_bytes = random_max_bytes(random);
  for (uint32_t i = 0; i < count; ++i) {
    RcRules rules = random_rules(random);
    rules.max_bytes = max_bytes;
    rules.first_taken = static_cast<uint32_t>(shape.limits.first_sequence);
    nics.add(seed + i, rules);
  }
  Group group(shape, seed, nics);
  OrderChecker checker(group.sessions(), seed, {});
  Outcome out;
  out.fault = post_until(group, nics, checker, kCourse, random() % kCourse.posts);
  if (random() % 4 != 0) go_dead(nics.networks[random() % 3 == 0 ? random() % count : 0]);
  if (out.fault.empty()) out.fault = play(group, nics, checker, kCourse);
  for (const RcNetwork& nic : nics.networks) {
    out.posted += nic.posted();
    out.breaks += nic.breaks();
    out.unanswered += nic.done_unanswered();
    out.late += nic.late();
  }
  for (uint32_t rank = 0; rank < group.sessions().size(); ++rank) {
    out.moved += group.count(rank).moved.get();
    out.replayed += group.count(rank).replayed.get();
  }
  return out;
}

uint64_t moved(const Group& group) {
  return group.count(0).moved.get() + group.count(1).moved.get();
}

}  // namespace

TEST_CASE("NICs that break or go for good leave nothing lost, repeated or late") {
  Outcome total;
  uint64_t seeds = 0;
  for (uint64_t one = seed(); total.posted < wanted_operations(kWanted); ++one, ++seeds) {
    const Outcome outcome = run(one);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    total.posted += outcome.posted;
    total.breaks += outcome.breaks;
    total.unanswered += outcome.unanswered;
    total.late += outcome.late;
    total.moved += outcome.moved;
    total.replayed += outcome.replayed;
  }
  std::printf(
      "standby_mend_test: %llu operations of %llu groups; %llu connections broke; %llu operations "
      "were done unanswered, %llu came late; %llu link ends went over to another NIC, %llu "
      "operations were sent again\n",
      static_cast<unsigned long long>(total.posted), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(total.breaks),
      static_cast<unsigned long long>(total.unanswered),
      static_cast<unsigned long long>(total.late), static_cast<unsigned long long>(total.moved),
      static_cast<unsigned long long>(total.replayed));
  if (total.posted < 300'000) return;  // a few groups may have none
  CHECK(total.moved > 0);
  CHECK(total.unanswered > 0);
  CHECK(total.late > 0);
  CHECK(total.replayed > 0);
}

TEST_CASE("a NIC that goes takes nothing with it, whichever end has something to send") {
  for (const uint32_t from : {0u, 1u}) {
    CAPTURE(from);
    Nics nics;
    add_calm(nics, 2);
    Group group(HandShape{}, seed(), nics);
    OrderChecker checker(group.sessions(), seed(), {});
    go_dead(nics.networks[0]);  // the other end is idle, and hears of it over the other NIC
    checker.push_write(from, 0, 1 - from, false, 100);
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(turn_until(group, checker, kCourse, [&] { return moved(group) == 2; }) == "");
    std::vector<Event> events = group.events.take();
    REQUIRE_FALSE(events.empty());
    for (const Event& event : events) {
      CHECK(event.kind == "moved");
      CHECK_MESSAGE(event.detail.find(" goes over endpoint ") != std::string::npos, event.detail);
    }
  }
}

// What says to the receiver that a write is there, so that it uses the destination for something
// else: each of these was taken, and no answer came back before the NIC went.
TEST_CASE("a write that its receiver knows of does not go over another NIC") {
  for (const std::string how : {"its own signal", "a signal behind it", "an ADD", "a CAS"}) {
    CAPTURE(how);
    Nics nics;
    add_calm(nics, 2);
    Group group(HandShape{}, seed(), nics);
    OrderChecker checker(group.sessions(), seed(), {});
    RcNetwork& first = nics.networks[0];
    first.rules.unanswered = true;
    checker.push_write(0, 0, 1, false, how == "its own signal" ? 100 : 0);
    if (how == "a signal behind it") checker.push_write(0, 0, 1, false, 100);
    if (how == "an ADD" || how == "a CAS") checker.push_atomic(0, 0, 1, how == "a CAS");
    REQUIRE(turn_until(group, checker, kCourse, [&] { return checker.seen(0, 0, 1) > 0; }) == "");
    REQUIRE_FALSE(checker.completed(0));
    go_dead(first);
    first.break_all();
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(first.done_unanswered() > 0);
    CHECK(turn_until(group, checker, kCourse, [&] { return moved(group) == 2; }) == "");
  }
}

TEST_CASE("a link that goes by what an older connection told is found") {
  std::string found;
  for (uint64_t one = seed(); found.empty() && one < seed() + 20; ++one)
    found = run(one, true).fault;
  CHECK_FALSE(found.empty());
}

TEST_CASE("a link stays on its NIC over breaks, and on the other one when the first comes back") {
  Nics nics;
  add_calm(nics, 2);
  Group group(HandShape{}, seed(), nics);
  OrderChecker checker(group.sessions(), seed(), {});
  RcNetwork &first = nics.networks[0], &second = nics.networks[1];
  for (int i = 0; i < 5; ++i) {
    REQUIRE(push_more(group, checker, first) == "");
    first.break_all();
  }
  REQUIRE(push_more(group, checker, first) == "");
  CHECK(second.posted() == 0);
  go_dead(first);
  REQUIRE(push_more(group, checker, second) == "");
  come_back(first);
  const uint64_t before = first.posted();
  for (int i = 0; i < 5; ++i) {
    REQUIRE(push_more(group, checker, second) == "");
    second.break_all();
  }
  REQUIRE(push_more(group, checker, second) == "");
  CHECK(first.posted() == before);
  CHECK(moved(group) == 2);
  go_dead(second);
  REQUIRE(push_more(group, checker, first) == "");
  CHECK(moved(group) == 4);
  CHECK(end_all(group, checker, kCourse) == "");
}

// Greetings pass there, and nothing else does.
TEST_CASE("a NIC whose tries are over is left, and with the last one the rank is lost") {
  HandShape shape;
  shape.limits.tries = 3;
  Nics nics;
  add_calm(nics, 2);
  Group group(shape, seed(), nics);
  OrderChecker checker(group.sessions(), seed(), {});
  REQUIRE(push_more(group, checker, nics.networks[0]) == "");
  go_mute(nics.networks[0]);
  REQUIRE(push_more(group, checker, nics.networks[1]) == "");
  CHECK(moved(group) >= 2);
  go_mute(nics.networks[1]);
  const std::string why = push_until(group, checker, [] { return false; });
  CHECK_MESSAGE(why.find(" lost rank ") != std::string::npos, why);
  CHECK_MESSAGE(names_cause(why, "broke again and again (it broke"), why);
}

TEST_CASE("a group whose last NIC goes ends with a reason that names the rank") {
  HandShape shape;
  shape.limits.stall_ns = 1'000'000'000;
  Nics nics;
  add_calm(nics, 2);
  Group group(shape, seed(), nics);
  OrderChecker checker(group.sessions(), seed(), {});
  go_dead(nics.networks[0]);
  REQUIRE(push_more(group, checker, nics.networks[1]) == "");
  go_dead(nics.networks[1]);
  const std::string why = push_until(group, checker, [] { return false; });
  CHECK_MESSAGE(why.find(" lost rank ") != std::string::npos, why);
  CHECK_MESSAGE(names_cause(why, "its connection broke (it broke)"), why);
}

TEST_CASE("a NIC that is given up for one rank loses none; the last one loses that rank alone") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < kGroups; ++run) {
    CAPTURE(run);
    HandShape shape;
    shape.nodes = {{0}, {1}, {2}};
    shape.mask = true;
    shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
    Nics nics;
    add_calm(nics, 2);
    Group group(shape, random(), nics);
    OrderChecker checker(group.sessions(), random(), {});
    const auto lost = [&] {
      std::vector<Event> out = group.events.take();
      std::erase_if(out, [](const Event& event) { return event.kind == "moved"; });
      return out;
    };
    REQUIRE(post_until(group, nics, checker, kCourse, 300) == "");
    nics.networks[0].kill(0, 2);
    REQUIRE(post_until(group, nics, checker, kCourse, nics.posted() + 300) == "");
    REQUIRE(end_all(group, checker, kCourse) == "");
    CHECK(lost().empty());
    nics.networks[1].kill(0, 2);
    std::vector<Event> events;
    REQUIRE(turn_until(group, checker, kCourse, [&] {
              events = lost();
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
TEST_CASE("a masked delegate's link goes over to another NIC, and the others' barriers pass") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < kGroups; ++run) {
    CAPTURE(run);
    HandShape shape;
    shape.nodes = {{0}, {1, 2}};
    shape.mask = true;
    shape.limits.tries = UINT32_MAX;
    shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
    Nics nics;
    for (uint32_t i = 0; i < 2; ++i) nics.add(random(), random_rules(random));
    Group group(shape, random(), nics);
    OrderChecker::Rules pushed;
    pushed.barrier_per_mille = 20;
    OrderChecker checker(group.sessions(), random(), pushed);
    REQUIRE(post_until(group, nics, checker, kCourse, 300) == "");
    nics.networks[0].break_all();
    int turns = static_cast<int>(random() % 1000);
    REQUIRE(turn_until(group, checker, kCourse, [&] { return turns-- == 0; }) == "");
    checker.forget(1);
    for (const auto& epoch : group.epochs) epoch->mask({1});
    go_dead(nics.networks[0]);
    nics.networks[0].break_all();
    for (const auto& epoch : group.epochs) epoch->exclude({1});
    const uint64_t before = checker.barriers();
    REQUIRE(post_until(group, nics, checker, kCourse, nics.posted() + 500) == "");
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(checker.barriers() > before);
  }
}

// Where NICs apply ATOMICs, one of them is the one party for a word.
TEST_CASE("a group whose ATOMICs are the NICs' does not go over to another NIC") {
  HandShape shape;
  shape.limits.stall_ns = 1'000'000'000;
  shape.atomics = {AtomicsWish::kHardware, AtomicsAbility::kAble};
  Nics nics;
  add_calm(nics, 2);
  Group group(shape, seed(), nics);
  OrderChecker checker(group.sessions(), seed(), {});
  checker.push_write(0, 0, 1, false, 100);
  REQUIRE(end_all(group, checker, kCourse) == "");
  go_dead(nics.networks[0]);
  nics.networks[0].break_all();
  checker.push_write(0, 0, 1, false, 100);
  const std::string why = turn_until(group, checker, kCourse, [] { return false; });
  CHECK_MESSAGE(why.find("could not be made again") != std::string::npos, why);
  CHECK(nics.networks[1].posted() == 0);
}
