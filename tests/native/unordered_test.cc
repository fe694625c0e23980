// Agents over a network without order: groups under a checker that knows the ordering contract,
// with other shapes, delays and seeds each time. Sequences begin just below the wraps of 16 and 32
// bits.
#include <doctest/doctest.h>

#include <cstdio>

#include "contract_course.h"
#include "seed.h"
#include "srd_network.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = HandGroup<SrdNetwork, SrdEndpoint>;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWanted = 100'000;
#else
constexpr uint64_t kWanted = 1'000'000;
#endif
constexpr Course kCourse{25'000, 2'000'000};
constexpr uint64_t kBelowWraps = (uint64_t{1} << 32) - 1500;

SrdRules random_rules(std::minstd_rand& random) {
  SrdRules rules;
  rules.delay = 1 + random() % 120;
  rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
  rules.queue = 8u << (random() % 6);
  rules.max_bytes = random_max_bytes(random);
  return rules;
}

struct Outcome {
  std::string fault;
  uint64_t posted, overtaken, repeated, barriers, joined;
};

Outcome run(uint64_t seed) {
  std::minstd_rand random(seed);
  HandShape shape = random_shape(random);
  shape.limits.adaptive = random() % 2 == 0;
  shape.limits.first_sequence = kBelowWraps;
  const SrdRules rules = random_rules(random);
  SrdNetwork network(seed, rules);
  Group group(shape, seed, network);
  OrderChecker checker(group.sessions(), seed, {});
  const std::string fault = play(group, network, checker, kCourse);
  return {
      fault,        network.posted(), network.overtaken(), network.repeated(), checker.barriers(),
      joined(group)};
}

}  // namespace

TEST_CASE("over a network without order every signal, DRAIN and BARRIER keeps its promise") {
  Outcome total{};
  uint64_t seeds = 0;
  for (uint64_t one = seed(); total.posted < wanted_operations(kWanted); ++one, ++seeds) {
    const Outcome outcome = run(one);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    total.posted += outcome.posted;
    total.overtaken += outcome.overtaken;
    total.repeated += outcome.repeated;
    total.barriers += outcome.barriers;
    total.joined += outcome.joined;
  }
  std::printf(
      "unordered_test: %llu operations of %llu groups; %llu came late, %llu twice; "
      "%llu barriers; %llu writes joined\n",
      static_cast<unsigned long long>(total.posted), static_cast<unsigned long long>(seeds),
      static_cast<unsigned long long>(total.overtaken),
      static_cast<unsigned long long>(total.repeated),
      static_cast<unsigned long long>(total.barriers),
      static_cast<unsigned long long>(total.joined));
  CHECK(total.overtaken > total.posted / 20);
  CHECK(total.repeated > 0);
  CHECK(total.barriers > seeds);
  CHECK(total.joined > total.posted / 50);
}
