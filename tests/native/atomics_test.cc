// ATOMICs that the owner's agent applies, same node and over networks, and who is chosen to.
#include <doctest/doctest.h>

#include "hammer.h"
#include "host_atomics.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kRings = 3;
constexpr uint32_t kBlocks = 2, kThreadRounds = 4;  // of a kernel

void hammer(const GroupShape& shape) {
  CoreGroup group(shape);
  check_atomics(group.pods, 1500, [] { std::this_thread::yield(); });
  for (const auto& core : group.cores) {
    CHECK(core->failure(1) == "");
    CHECK(core->atomics(1).starts_with("emulated: "));
  }
  group.close();
}

// Two blocks change the owner's words. A chain for each word.
void change_by_threads(const GroupShape& shape) {
  CoreGroup group(shape);
  const Segments& segments = group.pods[0].session->segments();
  const host_kernels::Changes changes{const_cast<PodHeader*>(segments.pod_header()),
                                      segments.header(),
                                      shape.rings,
                                      shape.depth,
                                      shape.signals,
                                      2,
                                      0,
                                      1,
                                      16,
                                      kBlocks,
                                      kThreadRounds,
                                      epfabric::test::seed(),
                                      kTestLimitNs};
  const std::vector<host_kernels::Change> done = changes.run();
  REQUIRE(done.size() == size_t{kBlocks} * changes.block_threads() * kThreadRounds);
  std::map<uint64_t, std::map<size_t, std::vector<Done>>> words;  // by thread
  for (size_t i = 0; i < done.size(); ++i) {
    const host_kernels::Change& c = done[i];
    words[c.word][i / kThreadRounds].push_back({c.cas != 0, c.expected, c.value, c.old});
  }
  Swaps swaps;
  for (const auto& [word, threads] : words) {
    std::vector<std::vector<Done>> orders;
    for (const auto& [thread, order] : threads) orders.push_back(order);
    const Swaps some = check_chain(orders, *word_of(group.pods[1], word));
    swaps.stored += some.stored, swaps.missed += some.missed;
  }
  CHECK(swaps.stored > 0);
  CHECK(swaps.missed > 0);
  for (const auto& ring : group.pods[0].session->rings()) CHECK(ring->idle());
  group.close();
}

constexpr AtomicsOffer kAble{AtomicsWish::kAuto, AtomicsAbility::kAble};
constexpr AtomicsOffer kTcp{AtomicsWish::kAuto, AtomicsAbility::kNoVerbs};
constexpr AtomicsOffer kWants{AtomicsWish::kHardware, AtomicsAbility::kAble};

std::string chosen(std::vector<AtomicsOffer> offers, bool one_node = false) {
  const std::vector<uint64_t> needs(offers.size(), 100);
  try {
    return choose_atomics(offers, needs, one_node).text();
  } catch (const NativeError& error) {
    return std::string("refused: ") + error.what();
  }
}

}  // namespace

TEST_CASE("atomics of ranks of one node are one chain, and behind their ring's writes") {
  hammer({{{0, 1, 2}}, {2}, kRings, 16, 2, 65536, {}});
}

TEST_CASE("atomics of ranks of two nodes are one chain, and behind their ring's writes") {
  GroupShape shape{{{0, 1}, {2, 3}}, {2, 1}, kRings, 16, 2, 65536, {}};
  shape.settings.provider = "twin";
  hammer(shape);
  shape.settings.provider = kEfa;
  shape.settings.ports = {{"rdmap0", 1, ""}, {"rdmap1", 1, ""}};
  hammer(shape);
  shape.nics = {{1, 0}, {0, 1}, {0, 1}, {1, 0}};  // each has one near it: not the same at both ends
  shape.nics_used = 1;
  hammer(shape);
  shape.nics.clear();
  shape.nics_used = 0;
  shape.settings.ports.clear();
#if !defined(__SANITIZE_THREAD__)  // which cannot see into libfabric
  shape.settings.provider = "tcp;ofi_rxm";
  hammer(shape);
  shape.settings.gated = true;
  hammer(shape);
#endif
}

TEST_CASE("atomics of a kernel's threads, alone and by warps, are one chain for each word") {
  const uint32_t slots = 2 * host_kernels::Changes::block_threads();  // of a block in a round
  GroupShape shape{{{0, 1}}, {2}, 2, slots, 2, 65536, {}};
  change_by_threads(shape);
  shape.nodes = {{0}, {1}};
  shape.proxies = {1, 1};
  shape.settings.provider = "twin";
  change_by_threads(shape);
  shape.rings = 1;  // of both blocks
  shape.depth = slots * kBlocks * kThreadRounds;
  change_by_threads(shape);
}

TEST_CASE("NICs apply atomics only where one reaches each rank") {
  CHECK(chosen({kAble, kAble}) == "hardware: one NIC reaches each rank, and applies atomics");
  CHECK(chosen({kAble, kAble}, true) == "emulated: all ranks are on one node");
  CHECK(chosen({kWants, kWants}, true).starts_with("hardware: "));
  CHECK(chosen({kAble, kTcp}) == "emulated: rank 1's agent does not use verbs");
  CHECK(chosen({{AtomicsWish::kAuto, AtomicsAbility::kSeveralNics}, kAble}) ==
        "emulated: rank 0 is reached by several NICs, and one's atomic is none against another's");
  CHECK(chosen({kAble, {AtomicsWish::kEmulated, AtomicsAbility::kAble}}) ==
        "emulated: spec.atomics says so");
}

TEST_CASE("one NIC whose links are striped is not said to apply no atomics, nor to be several") {
  ProxySettings settings;
  settings.ports.resize(1);
  CHECK(offer_of(settings, 2).ability == AtomicsAbility::kAble);
  settings.stripes = 2;
  CHECK(chosen({kAble, offer_of(settings, 2)}) ==
        "emulated: rank 1's links are striped (highThroughput.nicsPerGPU is above 1)");
  settings.ports.resize(2);
  CHECK(offer_of(settings, 1).ability == AtomicsAbility::kSeveralNics);
}

TEST_CASE(
    "a NIC to which links would go over keeps NICs from atomics, unless these are asked for") {
  ProxySettings settings;
  settings.ports.resize(2);
  settings.ports[1].device = "another";
  CHECK(offer_of(settings, 1).ability == AtomicsAbility::kSeveralNics);
  settings.atomics = AtomicsWish::kHardware;  // links stay
  CHECK(offer_of(settings, 1).ability == AtomicsAbility::kAble);
  CHECK(offer_of(settings, 2).ability == AtomicsAbility::kSeveralNics);
}

TEST_CASE("NICs whose connections would not reach for atomics too do not apply them") {
  const std::string few =
      "the ranks on rank 1's node would need 100 connections, since atomics go through the NIC to "
      "ranks of their own node too, and there is room for 99";
  CHECK(chosen({kAble, {AtomicsWish::kAuto, AtomicsAbility::kAble, 99}}) == "emulated: " + few);
  CHECK(chosen({kAble, {AtomicsWish::kAuto, AtomicsAbility::kAble, 100}}).starts_with("hardware"));
  CHECK(chosen({kWants, {AtomicsWish::kHardware, AtomicsAbility::kAble, 99}})
            .starts_with("refused: spec.atomics is hardware, but " + few));
}

TEST_CASE("atomics by hardware are refused, not emulated, where they cannot be") {
  CHECK(chosen({kWants, {AtomicsWish::kHardware, AtomicsAbility::kUnable}}) ==
        "refused: spec.atomics is hardware, but rank 1's NIC applies no atomics: set it to auto or "
        "emulated, then the owner's agent applies atomics");
  CHECK(chosen({kTcp, kWants}).starts_with("refused: "));
  CHECK(chosen({{AtomicsWish::kEmulated, AtomicsAbility::kAble}, kWants}) ==
        "refused: spec.atomics is hardware for rank 1 and emulated for rank 0: it has to be the "
        "same for all ranks of a group");
  GroupShape shape{{{0}, {1}}, {1, 1}, kRings, 16, 2, 65536, {}};
  shape.settings.provider = "twin";
  shape.settings.atomics = "hardware";
  CHECK_THROWS_AS(CoreGroup{shape}, NativeError);
}
