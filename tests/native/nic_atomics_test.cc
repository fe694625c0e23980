// ATOMICs that NICs apply, over a network of this process that is moved by hand: ranks of the
// owner's node go through its NIC too, and one that may have been done is never done again.
#include <doctest/doctest.h>

#include <cstdio>

#include "contract_course.h"
#include "hammer.h"
#include "rc_network.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Group = HandGroup<RcNetwork, RcEndpoint>;

HandShape shape_of(std::vector<std::vector<uint32_t>> nodes, uint32_t rings) {
  HandShape shape;
  shape.nodes = std::move(nodes);
  shape.proxies = 2;
  shape.rings = rings;
  shape.depth = 16;
  shape.limits.tries = UINT32_MAX;
  shape.atomics = {AtomicsWish::kHardware, AtomicsAbility::kAble};
  return shape;
}

std::vector<RankPod> pods_of(const Group& group) {
  std::vector<RankPod> out;
  for (const auto& epoch : group.epochs) {
    for (const auto& session : epoch->sessions()) {
      RankPod pod;
      pod.session = session;
      add_rings(pod);
      out.push_back(std::move(pod));
    }
  }
  return out;
}

constexpr uint64_t kMostAdds = 2000;  // of a ring; its connection breaks before

// Its rings add 1 to a sixteenth of a word each, one at a time; how many were pushed and answered.
struct Adder {
  RankPod& pod;
  uint32_t ring;
  uint32_t place;
  uint64_t pushed = 0, answered = 0;

  void run() {
    while (pushed < kMostAdds) {
      Slot slot;
      pack_atomic(Op::kAdd, 0, 100, uint64_t{1} << place, slot);
      if (!pod.push(ring, slot)) return;
      pushed += 1;
      if (!pod.wait(ring, pod.rings[ring].head - 1, pod.aborts())) return;
      answered += 1;
    }
  }
};

struct Outcome {
  std::string failure;
  uint64_t breaks = 0, answered = 0;
  bool exact = true;
};

Outcome broken(uint64_t seed) {
  RcRules rules;
  rules.break_one_in = 400;
  RcNetwork network(seed, rules);
  Group group(shape_of({{0, 1}, {2}}, 2), seed, network);
  std::vector<RankPod> pods = pods_of(group);
  std::vector<Adder> adders;
  for (uint32_t ring = 0; ring < 2; ++ring) {
    adders.push_back({pods[0], ring, 16 * ring});
    adders.push_back({pods[2], ring, 32 + 16 * ring});
  }
  std::vector<std::function<void()>> calls;
  for (Adder& adder : adders) calls.emplace_back([&adder] { adder.run(); });
  run_all(calls, [&] { group.turn(); });
  for (int i = 0; i < 20'000; ++i) group.turn();  // what is late comes
  Outcome out{group.failure(), network.breaks()};
  const uint64_t counts = *word_of(pods[0], 100);
  for (const Adder& adder : adders) {
    const uint64_t done = counts >> adder.place & 0xffff;
    out.exact = out.exact && done >= adder.answered && done <= adder.pushed;
    out.answered += adder.answered;
  }
  return out;
}

// Masks and excludes the ranks that the group says are lost, and any of `more`; which they are.
std::vector<uint32_t> mask_lost(Group& group, std::vector<uint32_t> more) {
  for (const Event& event : group.events.take()) {
    if (event.kind == "lost") more.insert(more.end(), event.ranks.begin(), event.ranks.end());
  }
  std::sort(more.begin(), more.end());
  more.erase(std::unique(more.begin(), more.end()), more.end());
  if (more.empty()) return more;
  for (const auto& epoch : group.epochs) epoch->mask(more);
  for (const auto& epoch : group.epochs) epoch->exclude(more);
  return more;
}

// Rings that wait for an answer.
int64_t asking(const Group& group) {
  int64_t out = 0;
  for (const Session* session : group.sessions())
    out += std::count_if(session->rings().begin(), session->rings().end(),
                         [](const auto& ring) { return ring->awaits_answers(); });
  return out;
}

// Eight ranks have ATOMICs for one of them under way when its connections break, and it is masked.
void lose_an_owner(AtomicsWish wish, uint64_t one) {
  std::minstd_rand random(static_cast<uint32_t>(one));
  HandShape shape = shape_of({{0, 1}, {2, 3}, {4, 5}, {6, 7}}, 2);
  shape.depth = 64;
  shape.proxies = 1;  // so that ranks and endpoints have the same numbers
  shape.signals = kWords;
  shape.mask = true;
  shape.atomics.wish = wish;
  shape.region_bytes = OrderChecker::region_bytes(8, shape.rings);
  RcRules calm;
  calm.refuse_one_in = calm.miss_one_in = calm.give_up_one_in = 0;
  RcNetwork network(random(), calm);
  Group group(shape, random(), network);
  const bool by_nic = wish == AtomicsWish::kHardware;
  REQUIRE(group.epochs[0]->atomics().by_nic == by_nic);
  OrderChecker::Rules pushed;
  pushed.add_percent = 30;
  pushed.barrier_per_mille = 20;
  OrderChecker checker(group.sessions(), random(), pushed);
  const Course course{0, 4'000'000, 20'000};
  const auto owner = static_cast<uint32_t>(1 + random() % 7);
  checker.forget(owner);
  for (uint32_t rank = 0; rank < 8; ++rank) {
    for (uint32_t ring = 0; rank != owner && ring < 2; ++ring) {
      checker.push_write(rank, ring, owner, false, 50);
      checker.push_atomic(rank, ring, owner, ring == 1);
    }
  }
  network.rules.unanswered = true;
  const int64_t wanted = by_nic ? 1 + static_cast<int64_t>(random() % 14) : 1;
  REQUIRE(turn_until(group, checker, course, [&] { return asking(group) >= wanted; }) == "");
  network.break_all(owner);
  network.rules.unanswered = false;
  std::vector<uint32_t> lost;
  uint64_t patience = random() % 3000;  // by agents nobody is lost, unless something else says so
  REQUIRE(turn_until(group, checker, course, [&] {
            const bool now = !by_nic && patience-- == 0;
            lost = mask_lost(group, now ? std::vector{owner} : std::vector<uint32_t>{});
            return !lost.empty();
          }) == "");
  CHECK(lost == std::vector{owner});
  const uint64_t more = network.posted() + 300;
  REQUIRE(turn_until(group, checker, course, [&] {
            checker.push();
            return network.posted() >= more && checker.barriers() > 0;
          }) == "");
  CHECK(end_all(group, checker, course) == "");
  CHECK(asking(group) == 0);
  CHECK(mask_lost(group, {owner}) == std::vector{owner});  // nobody said it of another rank
}

}  // namespace

TEST_CASE("atomics by NIC are one chain, and behind their ring's writes") {
  RcNetwork network(seed(), {});
  Group group(shape_of({{0, 1}, {2, 3}}, 3), seed(), network);
  for (const auto& epoch : group.epochs) CHECK(epoch->atomics().by_nic);
  for (const Session* session : group.sessions()) {  // asked again once it has a region
    for (const auto& proxy : session->proxies()) CHECK(proxy->ability() == AtomicsAbility::kAble);
  }
  std::vector<RankPod> pods = pods_of(group);
  check_atomics(pods, 300, [&] { group.turn(); });
  CHECK(group.failure() == "");
}

TEST_CASE("a group whose connections for atomics by NIC do not fit has them emulated everywhere") {
  for (const uint64_t room : {5, 6}) {  // node 0 needs 2 to rank 2, and 4 among its own ranks
    HandShape shape = shape_of({{0, 1}, {2}}, 1);
    shape.proxies = 1;
    shape.atomics = {AtomicsWish::kAuto, AtomicsAbility::kAble, room};
    RcNetwork network(seed(), {});
    Group group(shape, seed(), network);
    for (const auto& epoch : group.epochs) CHECK(epoch->atomics().by_nic == (room == 6));
  }
}

TEST_CASE("a rank whose NIC reaches it no more is not said to have lost itself") {
  RcNetwork network(seed(), {});
  HandShape shape = shape_of({{0}, {1}}, 1);
  shape.proxies = 1;
  Group group(shape, seed(), network);
  network.kill(0, 0);
  for (int i = 0; i < 200'000 && group.failure().empty(); ++i) group.turn();
  const std::string failure = group.failure();
  CHECK(failure.find("rank 0 cannot reach its own memory through its NIC: it was killed") == 0);
}

TEST_CASE(
    "an atomic by NIC that was under way when its connection broke fails the group, and is not "
    "done again") {
  uint64_t breaks = 0, answered = 0;
  for (uint64_t one = seed(); one < seed() + 10; ++one) {
    const Outcome outcome = broken(one);
    INFO("EPFABRIC_SEED=" << one);
    CHECK(outcome.exact);
    CHECK(outcome.failure.find("an ATOMIC that its NIC applies failed, and may have been done or "
                               "not: it broke") != std::string::npos);
    breaks += outcome.breaks;
    answered += outcome.answered;
  }
  CHECK(answered > 0);
  std::printf("nic_atomics_test: %llu breaks, %llu atomics answered before\n",
              static_cast<unsigned long long>(breaks), static_cast<unsigned long long>(answered));
}

TEST_CASE(
    "whose ATOMIC is under way to a rank that is masked is not kept waiting, nor the others") {
  for (const AtomicsWish wish : {AtomicsWish::kHardware, AtomicsWish::kEmulated}) {
    for (uint64_t one = seed(); one < seed() + 10; ++one) {
      INFO("EPFABRIC_SEED=" << one);
      lose_an_owner(wish, one);
    }
  }
}
