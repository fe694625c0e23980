// What the verbs transport chooses by what a device reports, and how two ends of a link meet; no
// device is needed.
#include "verbs_choice.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "seed.h"
#include "verbs_greeting.h"

using namespace epfabric::agent;

namespace {

ibv_gid_entry entry_of(uint32_t index, uint32_t port, uint32_t kind, uint8_t last) {
  ibv_gid_entry out{};
  out.gid.raw[15] = last;
  out.gid_index = index;
  out.port_num = port;
  out.gid_type = kind;
  return out;
}

Gid gid_of(uint8_t last) {
  Gid out{};
  out[15] = last;
  return out;
}

// One end as VerbsEndpoint keeps it, without a device.
struct Side {
  Acquaintance link;
  bool connected = false;
  Greeting says() const {
    Greeting out;
    out.generation = link.generation;
    out.seen = link.seen;
    out.acknowledged = link.acknowledged;
    return out;
  }
};

}  // namespace

TEST_CASE("a GID is found by its value on its port, RoCE v2 first, wherever it lies") {
  const std::vector<ibv_gid_entry> table{
      entry_of(0, 1, IBV_GID_TYPE_ROCE_V1, 7), entry_of(3, 1, IBV_GID_TYPE_ROCE_V2, 7),
      entry_of(5, 1, IBV_GID_TYPE_ROCE_V1, 9), entry_of(4, 2, IBV_GID_TYPE_ROCE_V2, 8)};
  CHECK(find_gid(table, 1, gid_of(7))->gid_index == 3);
  CHECK(find_gid(table, 1, gid_of(9))->gid_index == 5);
  CHECK(find_gid(table, 1, gid_of(8)) == nullptr);
  CHECK(find_gid(table, 2, gid_of(8))->gid_index == 4);
}

TEST_CASE("memory is registered as the device can, and another device's never as host memory") {
  for (const bool on_demand : {false, true}) {
    CHECK(choose_memory(false, true, {false, on_demand}) == MemoryKind::kPinned);
    CHECK(choose_memory(false, false, {false, on_demand}) ==
          (on_demand ? MemoryKind::kOnDemand : MemoryKind::kNone));
    CHECK(choose_memory(true, true, {true, on_demand}) == MemoryKind::kDmaBuf);
    CHECK(choose_memory(true, true, {false, on_demand}) == MemoryKind::kNone);
  }
}

TEST_CASE("queues are never larger than the device allows, and hold what can be outstanding") {
  for (const int limit : {64, 1000, 32768, 4'000'000}) {
    for (const uint32_t inflight : {1u, 256u, 16384u}) {
      ibv_device_attr device{};
      device.max_qp_wr = device.max_srq_wr = device.max_cqe = limit;
      const QueueSizes sizes = choose_sizes(device, inflight);
      CHECK(sizes.send >= 1);
      CHECK(sizes.send <= static_cast<uint32_t>(limit));
      CHECK(sizes.receive <= static_cast<uint32_t>(limit) / 4);
      CHECK(sizes.total <= static_cast<uint32_t>(limit));
      CHECK(sizes.send <= 2 * inflight + 64);
    }
  }
}

TEST_CASE("quirks are found by vendor; other vendors have none") {
  CHECK(quirk_of(0x1d0f).unfit != nullptr);
  CHECK(quirk_of(0xffffff).ack_timeout > kAckTimeout);
  CHECK(quirk_of(0x02c9).unfit == nullptr);
  CHECK(quirk_of(0x02c9).ack_timeout == kAckTimeout);
}

TEST_CASE("two ends meet however many greetings are lost, and then fall silent") {
  std::mt19937_64 random(epfabric::test::seed());
  for (int run = 0; run < 2000; ++run) {
    Side sides[2];
    const double loss = 0.9 * static_cast<double>(random() % 100) / 100;
    std::bernoulli_distribution lost(loss);
    int sent = 0;
    const auto deliver = [&](int from, auto&& again) -> void {
      REQUIRE(++sent < 10'000);
      if (lost(random)) return;
      Side& to = sides[1 - from];
      const Answer answer = hear(to.link, sides[from].says());
      REQUIRE(answer != Answer::kConflict);
      if (answer == Answer::kConnect) {
        to.connected = true;
        to.link.seen = sides[from].link.generation;
      }
      if (answer != Answer::kNothing) again(1 - from, again);
    };
    for (int turn = 0; !(sides[0].link.met() && sides[1].link.met()); ++turn) {
      REQUIRE(turn < 5000);
      const int side = static_cast<int>(random() % 2);
      if (!sides[side].link.met()) deliver(side, deliver);
      for (const Side& each : sides) {
        if (each.link.met()) CHECK((sides[0].connected && sides[1].connected));
      }
    }
  }
}

TEST_CASE("a peer with another queue pair than the one that is connected is a conflict") {
  Acquaintance link;
  Greeting greeting;
  greeting.generation = 1;
  CHECK(hear(link, greeting) == Answer::kConnect);
  link.seen = 1;
  greeting.generation = 2;
  CHECK(hear(link, greeting) == Answer::kConflict);
}

TEST_CASE("nobody joins a connection of another era, nor goes on to one by itself") {
  Acquaintance link;
  Greeting greeting;
  greeting.generation = 3;
  greeting.era = 1;
  CHECK(hear(link, greeting) == Answer::kConflict);
  CHECK(link.generation == 1);
  link = again(link, 1);
  CHECK(hear(link, greeting) == Answer::kConnect);
  CHECK(link.era == 1);
  greeting.era = 0;
  greeting.generation = 4;
  CHECK(hear(link, greeting) == Answer::kNothing);
}

// Greetings come late, in any order and more than once; either end breaks whenever it likes.
TEST_CASE("a greeting of an older try is not taken for one of the present") {
  std::mt19937_64 random(epfabric::test::seed());
  for (int run = 0; run < 2000; ++run) {
    Side sides[2];
    struct {
      uint64_t own = 0, others = 0;  // which queue pair is there, and which one it is connected to
    } pairs[2];
    struct Late {
      int from;
      uint64_t pair;
      Greeting greeting;
    };
    std::vector<Late> network;
    uint64_t made = 0;
    int breaks = 0, conflicts = 0, left = static_cast<int>(random() % 8);
    const auto remake = [&](int side) {
      sides[side].link = again(sides[side].link);
      pairs[side] = {++made, 0};
    };
    for (int side : {0, 1}) pairs[side] = {++made, 0};
    const auto met = [&] { return sides[0].link.met() && sides[1].link.met(); };
    for (int turn = 0; left > 0 || !met(); ++turn) {
      REQUIRE(turn < 100'000);
      const int side = static_cast<int>(random() % 2);
      if (left > 0 && random() % 20 == 0) {
        left -= 1;
        breaks += 1;
        remake(side);
      } else if (random() % 3 == 0) {
        network.push_back({side, pairs[side].own, sides[side].says()});
      } else if (!network.empty()) {
        const size_t which = random() % network.size();
        const Late late = network[which];
        if (random() % 4 != 0) network.erase(network.begin() + static_cast<ptrdiff_t>(which));
        const int to = 1 - late.from;
        Acquaintance& link = sides[to].link;
        const Answer answer = hear(link, late.greeting);
        if (answer == Answer::kConflict) {
          conflicts += 1;
          remake(to);
        }
        if (answer == Answer::kConnect) {
          link.seen = late.greeting.generation;
          pairs[to].others = late.pair;
        }
      }
      if (met()) {
        REQUIRE(pairs[0].others == pairs[1].own);
        REQUIRE(pairs[1].others == pairs[0].own);
      }
    }
    CHECK(conflicts <= breaks);
  }
}

TEST_CASE("an address that verbs did not make is refused") {
  VerbsAddress address;
  address.mtu = IBV_MTU_4096;
  auto bytes = bytes_of(address);
  CHECK(verbs_address(bytes).mtu == IBV_MTU_4096);
  bytes.pop_back();
  CHECK_THROWS_WITH(verbs_address(bytes), doctest::Contains("do both agents use verbs"));
  address.mtu = 9;
  CHECK_THROWS(verbs_address(bytes_of(address)));
  address.mtu = IBV_MTU_4096;
  address.magic += 1;
  CHECK_THROWS(verbs_address(bytes_of(address)));
}
