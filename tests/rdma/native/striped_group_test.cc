// Cores of one process whose links are striped over two rails of soft RoCE: bytes, signals, DRAIN
// and barriers; how much each NIC carries; what is said when one rail goes away.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "cores.h"
#include "ends.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kRings = 2;
constexpr uint64_t kLong = 256 << 10, kShort = 1 << 10;  // what the rings' writes have, in bytes
constexpr uint64_t kHalf = 1 << 20;                      // of a region: written to from there on

GroupShape shape_of() {
  GroupShape out{{{0}, {1}}, {1, 1}};
  out.rings = kRings;
  out.bytes = 2 * kHalf;
  out.ports = {{port_at('a', 1)}, {port_at('b', 1)}};
  return out;
}
GroupShape striped() {
  GroupShape out = shape_of();
  out.settings.stripes = 2;
  out.ports = {{port_at('a', 0), port_at('a', 1)}, {port_at('b', 0), port_at('b', 1)}};
  return out;
}

uint64_t sent_packets(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts");
  uint64_t out = 0;
  file >> out;
  return out;
}

uint64_t bytes_of(uint32_t ring) { return ring == 0 ? kLong : kShort; }
uint64_t word_of(uint64_t round, uint32_t source, uint32_t ring, uint64_t i) {
  return (round << 40) + (uint64_t{source} << 36) + (uint64_t{ring} << 32) + i;
}

// One rank's share of a round: a long write and a short one with a signal each; it waits for the
// other's, looks at every byte, drains, meets.
bool take_round(RankPod& me, uint32_t own, uint64_t round) {
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    const uint64_t at = ring * kLong;
    auto* words = reinterpret_cast<uint64_t*>(me.memory() + at);
    for (uint64_t i = 0; i < bytes_of(ring) / 8; ++i) words[i] = word_of(round, own, ring, i);
    Slot slot{};
    const auto from = static_cast<uint32_t>(at / kUnitBytes);
    const auto to = static_cast<uint32_t>((kHalf + at) / kUnitBytes);
    const auto units = static_cast<uint32_t>(bytes_of(ring) / kUnitBytes);
    if (!pack_write({1 - own, from, to, units, 1, 1}, slot) || !me.push(ring, slot)) return false;
  }
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    const uint64_t* word = me.session->segments().signal(1 - own, ring, 1);
    if (wait_at_least(word, round, me.aborts(), kTestLimitNs) != Waited::kDone) return false;
    const auto* words = reinterpret_cast<const uint64_t*>(me.memory() + kHalf + ring * kLong);
    for (uint64_t i = 0; i < bytes_of(ring) / 8; ++i) {
      if (words[i] != word_of(round, 1 - own, ring, i)) return false;
    }
    if (!me.run(ring, pack_drain(me.rings[ring].head))) return false;
  }
  return me.run(0, pack_barrier());
}

// Both ranks, until `rounds` of them or a fault; how many rank 0 made.
template <class Each>
uint64_t play(CoreGroup& group, uint64_t rounds, Each&& each) {
  std::atomic<uint64_t> made{0};
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      for (uint64_t round = 1; round <= rounds; ++round) {
        if (!take_round(group.pods[rank], rank, round)) return;
        if (rank == 0) each(made = round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return made;
}

}  // namespace

TEST_CASE("a striped link writes, signals, drains and meets over both of its NICs") {
  constexpr uint64_t kRounds = 10;
  const std::array<std::string, 4> devices{"ra0", "ra1", "rb0", "rb1"};
  CoreGroup group(striped());
  std::array<uint64_t, 4> before{}, sent{};
  for (size_t i = 0; i < devices.size(); ++i) before[i] = sent_packets(devices[i]);
  CHECK(play(group, kRounds, [](uint64_t) {}) == kRounds);
  for (size_t i = 0; i < devices.size(); ++i) {
    sent[i] = sent_packets(devices[i]) - before[i];
    MESSAGE(devices[i] << " sent " << sent[i] << " packets");
  }
  // Of 64 packets of 4 KiB a round and rank, not one NIC takes nearly all.
  for (const uint64_t packets : sent) CHECK(packets > kRounds * 64 / 10);
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}

TEST_CASE("a rail that goes away ends the striped group with the reason, and no other group") {
  CoreGroup group(striped()), other(shape_of());
  const uint64_t made = play(group, UINT64_MAX, [](uint64_t round) {
    if (round == 3) CHECK(std::system("ip link set va0 down") == 0);
  });
  CHECK(made >= 3);
  CHECK(play(other, 3, [](uint64_t) {}) == 3);
  CHECK(std::system("ip link set va0 up; ip route replace 10.9.0.2 dev va0 src 10.9.0.1 table 101; "
                    "ip route replace 10.9.0.1 dev vb0 src 10.9.0.2 table 102") == 0);
  for (const auto& core : group.cores) {
    const std::string why = core->failure(1);
    CAPTURE(why);
    const bool event = why.find("port 1 of RDMA device r") != std::string::npos;
    CHECK((event || why.find("does not answer") != std::string::npos));
  }
  for (const auto& core : other.cores) CHECK(core->failure(1) == "");
  other.close();
  group.close();
}
