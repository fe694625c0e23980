// Room on NICs that several ask for at once, and that comes back.
#include "nic_ledger.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "error.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

std::shared_ptr<NicLedger> ledger_of(int pairs_of_a, int pairs_of_b = 1000) {
  NicLimits limits;
  limits["a"].max_qp = pairs_of_a;
  limits["b"].max_qp = pairs_of_b;
  return std::make_shared<NicLedger>(limits, NicUses{{"a", {.domains = 1}}, {"b", {.domains = 1}}});
}

std::string refusal_of(std::span<const NicShare::Wish> wishes) {
  try {
    NicShare::take(wishes, "they");
  } catch (const NativeError& refused) {
    return refused.what();
  }
  return "";
}

uint64_t pairs_of(const NicLedger& ledger, const char* device) {
  return ledger.uses().at(device).queue_pairs;
}

}  // namespace

TEST_CASE("of groups that open at once no two are told of the same room") {
  constexpr int kGroups = 3, kRounds = 300;
  const auto ledger = ledger_of(10);
  std::atomic<int> arrived{0}, taken{0};
  std::vector<int> by_round(kRounds);
  const auto all_here = [&arrived](int by) {
    arrived += 1;
    return within([&] { return arrived >= by; });
  };
  const auto open = [&](int own) {
    for (int round = 0; round < kRounds; ++round) {
      NicShare share(ledger, {"b", "a"});
      const NicShare::Wish wish{&share, link_use(6)};
      if (!all_here((3 * round + 1) * kGroups)) return;
      if (refusal_of({&wish, 1}).empty()) taken += 1;
      if (!all_here((3 * round + 2) * kGroups)) return;
      if (own == 0) by_round[static_cast<size_t>(round)] = taken.exchange(0);
      share.give_back();
      if (!all_here((3 * round + 3) * kGroups)) return;
    }
  };
  std::vector<std::thread> groups;
  for (int i = 0; i < kGroups; ++i) groups.emplace_back(open, i);
  for (std::thread& group : groups) group.join();
  REQUIRE(arrived == 3 * kRounds * kGroups);
  int wrong = 0;
  for (const int each : by_round) wrong += each == 1 ? 0 : 1;
  CHECK(wrong == 0);
  CHECK(pairs_of(*ledger, "a") == 0);
  CHECK(pairs_of(*ledger, "b") == 0);
}

TEST_CASE("what is refused for one NIC takes nothing of another, and fits once there is room") {
  const auto ledger = ledger_of(10, 5);
  NicShare first(ledger, {"a"}), second(ledger, {"a"}), third(ledger, {"b"});
  const NicShare::Wish one{&first, link_use(7)};
  const std::vector<NicShare::Wish> both{{&second, link_use(3)}, {&third, link_use(6)}};
  REQUIRE(refusal_of({&one, 1}) == "");
  CHECK(first.links_left() == 3);
  const std::string why = refusal_of(both);
  CHECK(why.find("RDMA device b has 5 queue pairs (max_qp), of which this agent uses 0, and they "
                 "need 6 more: use fewer proxies") == 0);
  CHECK(pairs_of(*ledger, "a") == 7);
  CHECK(pairs_of(*ledger, "b") == 0);
  const std::vector<NicShare::Wish> too_many{{&second, link_use(2)}, {&second, link_use(2)}};
  CHECK(refusal_of(too_many).find("uses 7, and they need 4 more") != std::string::npos);
  first.give_back();
  CHECK(refusal_of(too_many) == "");
  CHECK(pairs_of(*ledger, "a") == 4);
}

TEST_CASE("a share comes back once, whole, and takes nothing after that") {
  const auto ledger = ledger_of(10);
  {
    NicShare share(ledger, {"a", "a"});  // two ports of one device
    for (const uint32_t links : {1, 2}) {
      const NicShare::Wish wish{&share, link_use(links)};
      REQUIRE(refusal_of({&wish, 1}) == "");
    }
    CHECK(pairs_of(*ledger, "a") == 6);
    share.give_back();
    CHECK(pairs_of(*ledger, "a") == 0);
    const NicShare::Wish late{&share, link_use(1)};
    CHECK(refusal_of({&late, 1}) == "");
    CHECK(pairs_of(*ledger, "a") == 0);
  }
  CHECK(pairs_of(*ledger, "a") == 0);
  {
    NicShare share(ledger, {"a"});
    const NicShare::Wish wish{&share, link_use(4)};
    REQUIRE(refusal_of({&wish, 1}) == "");
  }
  CHECK(pairs_of(*ledger, "a") == 0);
  CHECK(ledger->uses().at("a").domains == 1);
}

TEST_CASE("a NIC that stands by is done without where it has no room, and takes nothing of links") {
  const auto ledger = ledger_of(10, 1);
  NicShare share(ledger, {"a"}), late(ledger, {"a"});
  share.take_spare("b", endpoint_use(0));
  late.take_spare("b", endpoint_use(0));
  CHECK(share.has_spare());
  CHECK_FALSE(late.has_spare());
  const std::vector<NicShare::Wish> links{{&share, link_use(4)}, {&late, link_use(6)}};
  REQUIRE(refusal_of(links) == "");
  CHECK(pairs_of(*ledger, "a") == 10);
  CHECK(pairs_of(*ledger, "b") == 1);
  late.give_back();
  CHECK(pairs_of(*ledger, "b") == 1);
  share.give_back();
  CHECK(pairs_of(*ledger, "a") == 0);
  CHECK(pairs_of(*ledger, "b") == 0);
  share.take_spare("b", endpoint_use(0));
  CHECK(pairs_of(*ledger, "b") == 0);
}
