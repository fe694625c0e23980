// Cores of one process whose links are striped over two rails of soft RoCE: bytes, signals, DRAIN
// and barriers; how much each NIC carries; that it goes on when one rail goes for good.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "cores.h"
#include "ends.h"
#include "mended.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint32_t kRings = 2;
constexpr uint64_t kLong = 256 << 10, kShort = 1 << 10;  // what the rings' writes have, in bytes
constexpr uint64_t kHalf = 1 << 20;                      // of a region: written to from there on

GroupShape on_rail(int rail) {
  GroupShape out{{{0}, {1}}, {1, 1}};
  out.rings = kRings;
  out.bytes = 2 * kHalf;
  out.ports = {{port_at('a', rail)}, {port_at('b', rail)}};
  return out;
}
GroupShape striped() {
  GroupShape out = on_rail(1);
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

// Both ranks' rounds.
class Play {
 public:
  explicit Play(CoreGroup& group) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      threads_.emplace_back([this, &pod = group.pods[rank], rank] {
        for (uint64_t round = 1; round <= last_ && !failed_; ++round) {
          if (rank == 0 && enough_) last_ = round;  // before its barrier, so that both know of it
          if (!take_round(pod, rank, round)) failed_ = true;
          if (rank == 0 && !failed_) made_ = round;
        }
      });
    }
  }
  ~Play() { end(); }
  // Waits for so many rounds more, and for `done`; false when one failed, or it takes too long.
  template <class Done>
  bool until(uint64_t rounds, Done&& done) {
    const uint64_t from = made_, begin = platform::clock_ns();
    while (!failed_ && (made_ < from + rounds || !done())) {
      if (platform::clock_ns() - begin > 2 * kTestLimitNs) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return !failed_;
  }
  bool until(uint64_t rounds) {
    return until(rounds, [] { return true; });
  }
  void end() {
    enough_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  bool failed() const { return failed_; }

 private:
  std::atomic<uint64_t> made_{0}, last_{UINT64_MAX};
  std::atomic<bool> enough_{false}, failed_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("a striped link writes, signals, drains and meets over both of its NICs") {
  constexpr uint64_t kRounds = 10;
  const std::array<std::string, 4> devices{"ra0", "ra1", "rb0", "rb1"};
  CoreGroup group(striped());
  std::array<uint64_t, 4> before{}, sent{};
  for (size_t i = 0; i < devices.size(); ++i) before[i] = sent_packets(devices[i]);
  CHECK(Play(group).until(kRounds));
  for (size_t i = 0; i < devices.size(); ++i) {
    sent[i] = sent_packets(devices[i]) - before[i];
    MESSAGE(devices[i] << " sent " << sent[i] << " packets");
  }
  // Of 64 packets of 4 KiB a round and rank, not one NIC takes nearly all.
  for (const uint64_t packets : sent) CHECK(packets > kRounds * 64 / 10);
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}

constexpr const char* kUp =
    "ip link set va0 up; ip route replace 10.9.0.2 dev va0 src 10.9.0.1 table 101; "
    "ip route replace 10.9.0.1 dev vb0 src 10.9.0.2 table 102";

TEST_CASE("a rail that goes for good ends the groups that have no other, and none else") {
  GroupShape shape = striped();
  shape.settings.limits.stall_ns = kTestLimitNs;
  CoreGroup group(shape), lone(on_rail(0)), other(on_rail(1));
  Play rounds(group), lone_rounds(lone);
  CHECK(rounds.until(2));
  CHECK(lone_rounds.until(2));
  CHECK(std::system("ip link set va0 down") == 0);
  // Both ends, and rounds over what is left.
  CHECK(rounds.until(3, [&] { return mended_by(group).ends >= 2; }));
  CHECK_FALSE(lone_rounds.until(UINT32_MAX));
  CHECK(lone_rounds.failed());
  CHECK(Play(other).until(2));
  CHECK(std::system(kUp) == 0);
  rounds.end();
  lone_rounds.end();  // both of its ranks, before what they use is closed
  const Mended mended = mended_by(group);
  std::printf("striped_group_test: %llu ends mended, %llu operations sent again\n",
              static_cast<unsigned long long>(mended.ends),
              static_cast<unsigned long long>(mended.operations));
  for (const auto& core : lone.cores) {
    const std::string why = core->failure(1);
    CAPTURE(why);
    CHECK(why.find("rank ") == 0);
    CHECK(why.find("its connection broke (port 1 of RDMA device r") != std::string::npos);
  }
  for (const CoreGroup* each : {&group, &other}) {
    for (const auto& core : each->cores) CHECK(core->failure(1) == "");
  }
  other.close();
  lone.close();
  group.close();
}
