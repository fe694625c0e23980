// Agents over a network without order: groups under a checker that knows the ordering contract,
// with other shapes, delays and seeds each time. Sequences begin just below the wraps of 16 and 32
// bits.
#include <doctest/doctest.h>

#include <cstdlib>

#include "hand_group.h"
#include "order_checker.h"
#include "seed.h"
#include "srd_network.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = HandGroup<SrdNetwork, SrdEndpoint>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kOperations = 100'000;
#else
constexpr uint64_t kOperations = 1'000'000;
#endif
constexpr uint64_t kEach = 25'000;          // of one seed
constexpr uint64_t kMostTurns = 2'000'000;  // to come to an end
constexpr uint64_t kBelowWraps = (uint64_t{1} << 32) - 1500;

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
  shape.limits.inflight = random() % 2 == 0 ? 256 : 16;
  shape.limits.adaptive = random() % 2 == 0;
  shape.limits.first_sequence = kBelowWraps;
  return shape;
}

SrdRules random_rules(std::minstd_rand& random) {
  SrdRules rules;
  rules.delay = 1 + random() % 120;
  rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
  rules.queue = 8u << (random() % 6);
  rules.max_bytes = 288;
  return rules;
}

// Turns until `done`; what is wrong, or "".
template <class Done>
std::string turn_until(Group& group, OrderChecker& checker, Done&& done) {
  for (uint64_t turns = 0; !done(); ++turns) {
    if (turns == kMostTurns) return "it does not come to an end";
    group.turn();
    checker.look();
    if (!checker.fault().empty()) return checker.fault();
    if (!group.failure().empty()) return group.failure();
  }
  return "";
}

struct Outcome {
  std::string fault;
  uint64_t posted, overtaken, repeated, barriers;
};

Outcome run(uint64_t seed) {
  std::minstd_rand random(seed);
  const HandShape shape = random_shape(random);
  const SrdRules rules = random_rules(random);
  SrdNetwork network(seed, rules);
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
  return {fault, network.posted(), network.overtaken(), network.repeated(), checker.barriers()};
}

}  // namespace

TEST_CASE("over a network without order every signal, DRAIN and BARRIER keeps its promise") {
  Outcome total{};
  uint64_t seeds = 0;
  for (uint64_t one = seed(); total.posted < wanted_operations(); ++one, ++seeds) {
    const Outcome outcome = run(one);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    total.posted += outcome.posted;
    total.overtaken += outcome.overtaken;
    total.repeated += outcome.repeated;
    total.barriers += outcome.barriers;
  }
  std::printf(
      "unordered_test: %llu operations of %llu groups; %llu came late, %llu twice; "
      "%llu barriers\n",
      static_cast<unsigned long long>(total.posted), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(total.overtaken),
      static_cast<unsigned long long>(total.repeated),
      static_cast<unsigned long long>(total.barriers));
  CHECK(total.overtaken > total.posted / 20);
  CHECK(total.repeated > 0);
  CHECK(total.barriers > seeds);
}
