// Cores of one process whose links are striped over two rails of soft RoCE: bytes, signals, DRAIN
// and barriers; how much each NIC carries; that it goes on when one rail goes for good.
#include <cstdio>
#include <cstdlib>

#include "mended.h"
#include "rounds.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

GroupShape striped() {
  GroupShape out = on_rail(1);
  out.settings.stripes = 2;
  out.ports = {{port_at('a', 0), port_at('a', 1)}, {port_at('b', 0), port_at('b', 1)}};
  return out;
}

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
  CHECK(all_failed(lone));
  CHECK(Play(other).until(2));
  const uint64_t before = sent_packets("ra0");
  CHECK(std::system(kUp) == 0);
  CHECK(rounds.until(1, [&] { return sent_packets("ra0") > before + 200; }));  // it carries again
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
