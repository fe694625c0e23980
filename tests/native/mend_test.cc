// Agents whose connections break again and again, under the checker that knows the ordering
// contract: sources are used again once they are completed, destinations once a signal said that
// they are full, so that what is sent twice, too late or not at all is seen.
#include <doctest/doctest.h>

#include <cstdio>

#include "contract_course.h"
#include "rc_network.h"
#include "seed.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = HandGroup<RcNetwork, RcEndpoint>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWanted = 40'000;
#else
constexpr uint64_t kWanted = 400'000;
#endif
// Time passes, or it would be thousands of turns until two ends look for each other.
constexpr Course kCourse{20'000, 4'000'000, 20'000};

RcRules random_rules(std::minstd_rand& random) {
  RcRules rules;
  rules.break_one_in = 50 + random() % 1000;
  rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
  rules.miss_one_in = random() % 2 == 0 ? 0 : 2 + random() % 4;
  rules.queue = 8u << (random() % 5);
  rules.max_bytes = random_max_bytes(random);
  return rules;
}

struct Outcome {
  std::string fault;
  uint64_t posted, breaks, unanswered, late, barriers, joined;
};

Outcome run(uint64_t seed) {
  std::minstd_rand random(seed);
  HandShape shape = random_shape(random);
  shape.limits.tries = UINT32_MAX;
  const RcRules rules = random_rules(random);
  RcNetwork network(seed, rules);
  Group group(shape, seed, network);
  OrderChecker checker(group.sessions(), seed, {});
  const std::string fault = play(group, network, checker, kCourse);
  return {fault,          network.posted(),   network.breaks(), network.done_unanswered(),
          network.late(), checker.barriers(), joined(group)};
}

// Some turns.
std::string pass(Group& group, OrderChecker& checker, int turns) {
  return turn_until(group, checker, kCourse, [&turns] { return turns-- == 0; });
}

}  // namespace

TEST_CASE("connections that break are made anew, and nothing is lost, repeated or late") {
  Outcome total{};
  uint64_t seeds = 0;
  for (uint64_t one = seed(); total.posted < wanted_operations(kWanted); ++one, ++seeds) {
    const Outcome outcome = run(one);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    total.posted += outcome.posted;
    total.breaks += outcome.breaks;
    total.unanswered += outcome.unanswered;
    total.late += outcome.late;
    total.barriers += outcome.barriers;
    total.joined += outcome.joined;
  }
  std::printf(
      "mend_test: %llu operations of %llu groups; %llu connections broke; %llu operations were "
      "done unanswered, %llu came late; %llu barriers; %llu writes joined\n",
      static_cast<unsigned long long>(total.posted), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(total.breaks),
      static_cast<unsigned long long>(total.unanswered),
      static_cast<unsigned long long>(total.late), static_cast<unsigned long long>(total.barriers),
      static_cast<unsigned long long>(total.joined));
  CHECK(total.breaks > 10 * seeds);
  CHECK(total.unanswered > 0);
  CHECK(total.late > 0);
  CHECK(total.barriers > seeds);
  CHECK(total.joined > total.posted / 50);
}

TEST_CASE("a connection that has nothing to carry may break more often than tries allow") {
  RcNetwork network(seed(), {});
  Group group(HandShape{}, seed(), network);
  OrderChecker checker(group.sessions(), seed(), {});
  for (uint32_t i = 0; i < 10; ++i) {
    network.break_all();
    REQUIRE(turn_until(group, checker, kCourse, [&] { return network.all_met(); }) == "");
  }
  Course course = kCourse;
  course.posts = network.posted() + 200;
  CHECK(play(group, network, checker, course) == "");
}

TEST_CASE(
    "the time in which a connection is made anew is none in which an ATOMIC is not answered") {
  const HandShape shape;
  RcNetwork network(seed(), {});
  Group group(shape, seed(), network);
  OrderChecker checker(group.sessions(), seed(), {});
  network.rules.still = true;
  checker.push_add(0, 0, 1);
  const uint64_t before = network.posted();
  REQUIRE(turn_until(group, checker, kCourse, [&] { return network.posted() > before; }) == "");
  group.pass_time(shape.limits.stall_ns / 10 * 6);
  network.break_all();
  REQUIRE(pass(group, checker, 100) == "");
  group.pass_time(shape.limits.stall_ns / 10 * 6);
  REQUIRE(pass(group, checker, 100) == "");
  network.rules.still = false;
  CHECK(end_all(group, checker, kCourse) == "");
}
