// Cores of one process with a NIC on each of two rails of soft RoCE, whose links use one at a time:
// they go over to the other one when theirs goes for good.
#include <cstdio>
#include <cstdlib>

#include "mended.h"
#include "rounds.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

GroupShape on_both() {
  GroupShape out = on_rail(0);
  out.ports = {{port_at('a', 0), port_at('a', 1)}, {port_at('b', 0), port_at('b', 1)}};
  return out;
}

constexpr const char* kSecondUp =
    "ip link set va1 up; ip route replace 10.9.1.2 dev va1 src 10.9.1.1 table 103; "
    "ip route replace 10.9.1.1 dev vb1 src 10.9.1.2 table 104";

}  // namespace

TEST_CASE("a link whose NIC goes for good goes over to the other one, and stays there") {
  GroupShape shape = on_both();
  shape.settings.limits.stall_ns = kTestLimitNs;
  CoreGroup group(shape), lone(on_rail(0)), other(on_rail(1));
  Play rounds(group), lone_rounds(lone);
  CHECK(rounds.until(2));
  CHECK(lone_rounds.until(2));
  CHECK(std::system("ip link set va0 down") == 0);
  CHECK(rounds.until(3, [&] { return mended_by(group).moved == 2; }));
  CHECK_FALSE(lone_rounds.until(UINT32_MAX));
  CHECK(lone_rounds.failed());
  CHECK(all_failed(lone));
  CHECK(Play(other).until(2));
  CHECK(std::system(kUp) == 0);
  CHECK(rounds.until(3));
  rounds.end();
  lone_rounds.end();
  const Mended mended = mended_by(group);
  std::printf("standby_group_test: %llu ends mended, %llu operations sent again\n",
              static_cast<unsigned long long>(mended.ends),
              static_cast<unsigned long long>(mended.operations));
  CHECK(mended.moved == 2);
  std::string told;
  for (const auto& core : group.cores) {
    CHECK(core->failure(1) == "");
    for (const Event& event : core->events().take()) told += event.detail + "\n";
  }
  CAPTURE(told);
  CHECK(told.find("what rank 0 sends to rank 1 goes over port 1 of RDMA device ra1 now: ") !=
        std::string::npos);
  CHECK(told.find("what rank 1 sends to rank 0 goes over port 1 of RDMA device rb1 now: ") !=
        std::string::npos);
  for (const auto& core : lone.cores) CHECK(core->failure(1).find("rank ") == 0);
  for (const auto& core : other.cores) CHECK(core->failure(1) == "");
  other.close();
  lone.close();
  group.close();
}

TEST_CASE("a group whose last NIC goes fails with that reason, and one beside it goes on") {
  GroupShape beside{{{0}, {1}}, {1, 1}};
  beside.rings = kRings;
  beside.bytes = 2 * kHalf;
  beside.settings.provider = "tcp;ofi_rxm";
  CoreGroup group(on_both()), untouched(beside);
  Play rounds(group), its_rounds(untouched);
  CHECK(rounds.until(2));
  CHECK(std::system("ip link set va1 down") == 0);
  CHECK(rounds.until(3));  // it stood by
  CHECK(mended_by(group).ends == 0);
  CHECK(std::system("ip link set va0 down") == 0);
  CHECK_FALSE(rounds.until(UINT32_MAX));
  CHECK(rounds.failed());
  CHECK(all_failed(group));
  CHECK(its_rounds.until(3));
  CHECK(std::system(kUp) == 0);
  CHECK(std::system(kSecondUp) == 0);
  rounds.end();
  its_rounds.end();
  for (const auto& core : group.cores) {
    const std::string why = core->failure(1);
    CAPTURE(why);
    CHECK(why.find("rank ") == 0);
    CHECK(why.find("its connection broke (") != std::string::npos);
    CHECK(why.find("port 1 of RDMA device r") != std::string::npos);
  }
  for (const auto& core : untouched.cores) CHECK(core->failure(1) == "");
  untouched.close();
  group.close();
}

TEST_CASE("nodes with one NIC and with two form a group, and one that stands by may go") {
  GroupShape shape = on_both();
  shape.ports[1].pop_back();
  CoreGroup group(shape);
  Play rounds(group);
  CHECK(rounds.until(2));
  CHECK(std::system("ip link set va1 down") == 0);
  CHECK(rounds.until(3));
  CHECK(std::system(kSecondUp) == 0);
  rounds.end();
  CHECK(mended_by(group).moved == 0);
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}
