// Agents whose connections break again and again, under the checker that knows the ordering
// contract: sources are used again once they are completed, destinations once a signal said that
// they are full, so that what is sent twice, too late or not at all is seen.
#include <doctest/doctest.h>

#include <cstdlib>

#include "hand_group.h"
#include "order_checker.h"
#include "rc_network.h"
#include "seed.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = HandGroup<RcNetwork, RcEndpoint>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kOperations = 40'000;
#else
constexpr uint64_t kOperations = 400'000;
#endif
constexpr uint64_t kEach = 20'000;          // of one seed
constexpr uint64_t kMostTurns = 4'000'000;  // to come to an end

uint64_t wanted_operations() {
  const char* given = std::getenv("EPFABRIC_OPERATIONS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : kOperations;
}

HandShape random_shape(std::minstd_rand& random) {
  static const std::vector<std::vector<std::vector<uint32_t>>> kNodes{
      {{0}, {1}}, {{0, 1}, {2}}, {{0}, {1}, {2}}};
  HandShape shape;
  shape.nodes = kNodes[random() % kNodes.size()];
  shape.proxies = 1 + random() % 2;
  shape.rings = 2 + random() % 2;
  shape.signals = kWords;
  shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
  shape.limits.tries = UINT32_MAX;
  shape.limits.inflight = random() % 2 == 0 ? 256 : 16;
  return shape;
}

RcRules random_rules(std::minstd_rand& random) {
  RcRules rules;
  rules.break_one_in = 50 + random() % 1000;
  rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
  rules.miss_one_in = random() % 2 == 0 ? 0 : 2 + random() % 4;
  rules.queue = 8u << (random() % 5);
  return rules;
}

template <class Done>
std::string turn_until(Group& group, OrderChecker& checker, Done&& done) {
  for (uint64_t turns = 0; !done(); ++turns) {
    if (turns == kMostTurns) return "it does not come to an end";
    group.pass_time(20'000);  // or it would be thousands of turns until ends look for each other
    group.turn();
    checker.look();
    if (!checker.fault().empty()) return checker.fault();
    if (!group.failure().empty()) return group.failure();
  }
  return "";
}

struct Outcome {
  std::string fault;
  uint64_t posted, breaks, unanswered, late, barriers;
};

Outcome run(uint64_t seed) {
  std::minstd_rand random(seed);
  const HandShape shape = random_shape(random);
  const RcRules rules = random_rules(random);
  RcNetwork network(seed, rules);
  Group group(shape, seed, network);
  OrderChecker checker(group.sessions(), seed, {});
  std::string fault = turn_until(group, checker, [&] {
    for (int i = 0; i < 4; ++i) checker.push();
    return network.posted() >= kEach;
  });
  if (fault.empty()) {
    fault = turn_until(group, checker, [&] {
      checker.finish_barriers();
      return checker.all_completed() && checker.barriers_even() && checker.all_signalled();
    });
    checker.look_at_places();
    if (fault.empty()) fault = checker.fault();
  }
  return {fault,          network.posted(),  network.breaks(), network.done_unanswered(),
          network.late(), checker.barriers()};
}

}  // namespace

TEST_CASE("connections that break are made anew, and nothing is lost, repeated or late") {
  Outcome total{};
  uint64_t seeds = 0;
  for (uint64_t one = seed(); total.posted < wanted_operations(); ++one, ++seeds) {
    const Outcome outcome = run(one);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    total.posted += outcome.posted;
    total.breaks += outcome.breaks;
    total.unanswered += outcome.unanswered;
    total.late += outcome.late;
    total.barriers += outcome.barriers;
  }
  std::printf(
      "mend_test: %llu operations of %llu groups; %llu connections broke; %llu operations were "
      "done "
      "unanswered, %llu came late; %llu barriers\n",
      static_cast<unsigned long long>(total.posted), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(total.breaks),
      static_cast<unsigned long long>(total.unanswered),
      static_cast<unsigned long long>(total.late), static_cast<unsigned long long>(total.barriers));
  CHECK(total.breaks > 10 * seeds);
  CHECK(total.unanswered > 0);
  CHECK(total.late > 0);
  CHECK(total.barriers > seeds);
}
