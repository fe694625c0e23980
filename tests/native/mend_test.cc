// Agents whose connections break again and again, under the checker that knows the ordering
// contract: sources are used again once they are completed, destinations once a signal said that
// they are full, so that what is sent twice, too late or not at all is seen.
#include <doctest/doctest.h>

#include <cstdio>

#include "contract_course.h"
#include "hand_ring.h"
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
// Of 16 and 32 bits.
constexpr uint64_t kBelowWraps = (uint64_t{1} << 32) - 40;
// Time passes, or it would be thousands of turns until two ends look for each other.
constexpr Course kCourse{20'000, 4'000'000, 20'000};

RcRules random_rules(std::minstd_rand& random) {
  RcRules rules;
  rules.break_one_in = 50 + random() % 1000;
  rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
  rules.miss_one_in = random() % 2 == 0 ? 0 : 2 + random() % 4;
  rules.queue = 8u << (random() % 5);
  rules.max_bytes = random_max_bytes(random);
  rules.polled = 1u << (random() % 6);
  return rules;
}

// Nothing is refused or lost but by a test's own breaks.
RcRules calm_rules() {
  RcRules rules;
  rules.refuse_one_in = rules.miss_one_in = rules.give_up_one_in = 0;
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
  if (random() % 2 == 0) shape.limits.first_sequence = kBelowWraps;
  RcRules rules = random_rules(random);
  rules.first_taken = static_cast<uint32_t>(shape.limits.first_sequence);
  RcNetwork network(seed, rules);
  Group group(shape, seed, network);
  OrderChecker checker(group.sessions(), seed, {});
  const std::string fault = play(group, network, checker, kCourse);
  return {fault,          network.posted(),   network.breaks(), network.done_unanswered(),
          network.late(), checker.barriers(), joined(group)};
}

// Masks and excludes the ranks that the group says are lost, as a coordinator does; which they are.
std::vector<uint32_t> mask_lost(Group& group, OrderChecker& checker) {
  std::vector<uint32_t> out;
  for (const Event& event : group.events.take()) {
    if (event.kind == "lost") out.insert(out.end(), event.ranks.begin(), event.ranks.end());
  }
  if (out.empty()) return out;
  for (const uint32_t rank : out) checker.forget(rank);
  for (const auto& epoch : group.epochs) epoch->mask(out);
  for (const auto& epoch : group.epochs) epoch->exclude(out);
  return out;
}

// Turns until these ranks have no operation under way any more.
std::string come_back(Group& group, OrderChecker& checker, const std::vector<uint32_t>& ranks) {
  return turn_until(group, checker, kCourse, [&] {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](uint32_t rank) { return group.inflight(rank) == 0; });
  });
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
  checker.push_atomic(0, 0, 1, false);
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

// What says to the receiver that a write is there, so that it uses the destination for something
// else: each of these was taken, and no answer came back before the connection broke.
TEST_CASE("a write that its receiver knows of does not come again when the answers were lost") {
  for (const std::string how : {"its own signal", "a signal behind it", "an ADD", "a CAS"}) {
    for (const uint64_t first : {uint64_t{0}, kBelowWraps + 39}) {
      CAPTURE(how);
      CAPTURE(first);
      HandShape shape;
      shape.limits.first_sequence = first;
      RcNetwork network(seed(), calm_rules());
      Group group(shape, seed(), network);
      OrderChecker checker(group.sessions(), seed(), {});
      network.rules.unanswered = true;
      checker.push_write(0, 0, 1, false, how == "its own signal" ? 100 : 0);
      if (how == "a signal behind it") checker.push_write(0, 0, 1, false, 100);
      if (how == "an ADD" || how == "a CAS") checker.push_atomic(0, 0, 1, how == "a CAS");
      REQUIRE(turn_until(group, checker, kCourse, [&] { return checker.seen(0, 0, 1) > 0; }) == "");
      REQUIRE(network.done() > 0);
      REQUIRE_FALSE(checker.completed(0));
      network.break_all();
      network.rules.unanswered = false;
      CHECK(end_all(group, checker, kCourse) == "");
      CHECK(network.done_unanswered() > 0);
    }
  }
}

TEST_CASE("a completion queue that is never empty keeps no link from being made anew") {
  RcNetwork network(seed(), calm_rules());
  Group group(HandShape{}, seed(), network);
  OrderChecker checker(group.sessions(), seed(), {});
  REQUIRE(post_until(group, network, checker, kCourse, 200) == "");
  network.rules.busy = true;
  network.break_all();
  const auto mended = [&] {
    return network.all_met() && group.count(0).mended.get() > 0 && group.count(1).mended.get() > 0;
  };
  const Course soon{0, 20'000, kCourse.step_ns};
  CHECK(turn_until(group, checker, soon, mended) == "");
  network.rules.busy = false;
  CHECK(end_all(group, checker, kCourse) == "");
}

TEST_CASE("a port that goes away costs a turn no more than a few queue pairs") {
  HandShape shape;
  shape.nodes.clear();
  for (uint32_t rank = 0; rank < 20; ++rank) shape.nodes.push_back({rank});
  shape.region_bytes = OrderChecker::region_bytes(20, shape.rings);
  RcNetwork network(seed(), calm_rules());
  Group group(shape, seed(), network);
  OrderChecker checker(group.sessions(), seed(), {});
  REQUIRE(post_until(group, network, checker, kCourse, 500) == "");
  network.break_all();
  CHECK(end_all(group, checker, kCourse) == "");
  CHECK(network.all_met());
  CHECK(network.most_work() > 0);
  CHECK(network.most_work() <= 8);
}

// Rank 1 is its node's delegate: barriers of the others go on over its connection.
TEST_CASE("a masked delegate's connection is made anew, and the others' barriers get through") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < 3 * kGroups / 2; ++run) {
    CAPTURE(run);
    HandShape shape;
    shape.nodes = {{0}, {1, 2}};
    shape.mask = true;
    shape.limits.tries = UINT32_MAX;
    shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
    RcRules rules = random_rules(random);
    RcNetwork network(random(), rules);
    Group group(shape, random(), network);
    OrderChecker::Rules pushed;
    pushed.barrier_per_mille = 20;
    OrderChecker checker(group.sessions(), random(), pushed);
    REQUIRE(post_until(group, network, checker, kCourse, 300) == "");
    network.break_all();
    REQUIRE(pass(group, checker, static_cast<int>(random() % 1000)) == "");
    checker.forget(1);
    for (const auto& epoch : group.epochs) epoch->mask({1});
    REQUIRE(pass(group, checker, static_cast<int>(random() % 1000)) == "");
    network.break_all();
    for (const auto& epoch : group.epochs) epoch->exclude({1});
    const uint64_t before = checker.barriers();
    REQUIRE(post_until(group, network, checker, kCourse, network.posted() + 500) == "");
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(checker.barriers() > before);
    network.rules.break_one_in = 0;
    CHECK(come_back(group, checker, {0, 2}) == "");
  }
}

TEST_CASE("a connection that is killed while it is made anew loses its rank, and no other") {
  std::minstd_rand random(static_cast<uint32_t>(seed()));
  for (int run = 0; run < 3 * kGroups / 2; ++run) {
    CAPTURE(run);
    HandShape shape;
    shape.nodes = {{0}, {1}, {2}};
    shape.mask = true;
    shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
    RcNetwork network(random(), calm_rules());
    Group group(shape, random(), network);
    OrderChecker checker(group.sessions(), random(), {});
    REQUIRE(post_until(group, network, checker, kCourse, 300) == "");
    network.break_all();
    REQUIRE(pass(group, checker, static_cast<int>(random() % 300)) == "");
    network.kill(0, 2);
    std::vector<uint32_t> lost;
    REQUIRE(turn_until(group, checker, kCourse, [&] {
              lost = mask_lost(group, checker);
              return !lost.empty();
            }) == "");
    CHECK(lost == std::vector<uint32_t>{2});
    CHECK(end_all(group, checker, kCourse) == "");
    CHECK(come_back(group, checker, {0, 1}) == "");
    CHECK(group.events.take().empty());
  }
}

// Its ring's proxy is another one than that which serves the barrier, and has no turn meanwhile.
TEST_CASE("a BARRIER waits for a signal in a queue that was empty when its proxy last looked") {
  HandShape shape;
  shape.nodes = {{0, 1}, {2}};
  shape.proxies = 2;
  shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
  RcNetwork network(seed(), calm_rules());
  Group group(shape, seed(), network);
  OrderChecker::Rules pushed;
  pushed.barrier_per_mille = 1000;
  OrderChecker checker(group.sessions(), seed(), pushed);
  REQUIRE(pass(group, checker, 1000) == "");
  checker.push_write(2, 1, 1, false, 100);
  checker.push();
  checker.finish_barriers();
  for (int i = 0; i < 20'000 && checker.fault().empty(); ++i) {
    group.turn_but({{1, 1}});
    checker.look();
  }
  CHECK(checker.fault() == "");
  CHECK(checker.completed(2));  // its signal lies there, and all have entered
  CHECK_FALSE(checker.barriers_even());
  CHECK(end_all(group, checker, kCourse) == "");
}

// Rank 0 is masked: its proxy serves barriers of its rail and of all at the same time.
TEST_CASE("a BARRIER does not end on what a barrier along a rail waited for before it") {
  HandShape shape;
  shape.nodes = {{0, 1}, {2}, {3}};
  shape.proxies = 2;
  shape.mask = true;
  RcNetwork network(seed(), calm_rules());
  Group group(shape, seed(), network);
  for (const auto& epoch : group.epochs) epoch->mask({0});
  for (const auto& epoch : group.epochs) epoch->exclude({0});
  HandRing one(group.session(1), 0), two(group.session(2), 0), two_signals(group.session(2), 1),
      three(group.session(3), 0);
  const auto come = [&](std::initializer_list<HandRing*> rings) {
    for (int i = 0; i < 100'000 && group.failure().empty(); ++i) {
      if (std::all_of(rings.begin(), rings.end(), [](HandRing* ring) { return ring->completed(); }))
        return true;
      group.turn_but({{0, 1}, {1, 1}});
    }
    return false;
  };
  two.push(pack_barrier(true));
  three.push(pack_barrier(true));
  REQUIRE(come({&two, &three}));
  // That barrier goes on waiting for (0, 1) here, but no more for (1, 1).
  for (int i = 0; i < 4; ++i) group.turn_of({1, 1});
  Slot signal{};
  REQUIRE(pack_signal(1, 0, 1, signal));
  two_signals.push(signal);
  for (HandRing* ring : {&one, &two, &three}) ring->push(pack_barrier());
  REQUIRE(come({&two, &two_signals, &three}));
  for (int i = 0; i < 4; ++i) group.turn_of({0, 1});
  for (int i = 0; i < 10'000; ++i) group.turn_but({{1, 1}});
  CHECK_FALSE(one.completed());
  const uint64_t* word = group.sessions()[1]->segments().signal(2, 1, 0);
  CHECK(platform::load_acquire(word) == 0);
  for (int i = 0; i < 100'000 && !one.completed(); ++i) group.turn();
  CHECK(one.completed());
  CHECK(platform::load_acquire(word) == 1);
  CHECK(group.failure() == "");
}

TEST_CASE("a completion queue that is never empty keeps no barrier from its end") {
  HandShape shape;
  shape.nodes = {{0, 1}, {2}};
  shape.proxies = 2;
  shape.region_bytes = OrderChecker::region_bytes(3, shape.rings);
  RcNetwork network(seed(), calm_rules());
  network.rules.busy = true;
  Group group(shape, seed(), network);
  OrderChecker::Rules pushed;
  pushed.barrier_per_mille = 100;
  OrderChecker checker(group.sessions(), seed(), pushed);
  const Course soon{0, 400'000, 0};
  REQUIRE(turn_until(group, checker, soon, [&] {
            checker.push();
            return checker.barriers() > 0;
          }) == "");
  CHECK(end_all(group, checker, soon) == "");
}

// The proxy is through with it before: what the checker then does to it would be taken for the
// next write's bytes.
TEST_CASE("a source is the checker's until it has seen its command complete") {
  HandShape shape;
  shape.depth = 256;
  RcNetwork network(seed(), calm_rules());
  Group group(shape, seed(), network);
  OrderChecker checker(group.sessions(), seed(), {});
  network.rules.unanswered = true;
  checker.push_write(0, 0, 1, false, 0);  // tickets behind it wait
  for (uint32_t i = 0; i < kPlaces; ++i) checker.push_write(0, 0, 0, true, 100);
  REQUIRE(turn_until(group, checker, kCourse, [&] { return checker.seen(0, 0, 0) == kPlaces; }) ==
          "");
  network.rules.unanswered = false;
  for (int i = 0; i < 10'000 && group.inflight(0) > 0; ++i) group.turn();
  REQUIRE_FALSE(checker.completed(0));
  checker.push_write(0, 0, 0, true, 100);
  checker.look();
  CHECK(end_all(group, checker, kCourse) == "");
}
