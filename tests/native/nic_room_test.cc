// What RDMA devices take against what sessions and groups need, with limits as real NICs print them
// (ibv_devinfo -v): a ConnectX-5, and a FastLinQ with few queue pairs.
#include "nic_room.h"

#include <doctest/doctest.h>

#include "budget.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

ibv_device_attr connectx5() {
  ibv_device_attr out{};
  out.max_qp = 262144;
  out.max_qp_wr = 32768;
  out.max_sge = 30;
  out.max_cq = 16777216;
  out.max_cqe = 4194303;
  out.max_mr = out.max_pd = 16777216;
  out.max_srq = 8388608;
  out.max_srq_wr = 32767;
  out.max_ah = 2147483647;
  return out;
}

ibv_device_attr fastlinq() {
  ibv_device_attr out{};
  out.max_qp = 8568;
  out.max_qp_wr = out.max_srq_wr = 32767;
  out.max_sge = 4;
  out.max_cq = 17136;
  out.max_cqe = 8388480;
  out.max_mr = 131070;
  out.max_pd = 65536;
  return out;  // it does not tell the others
}

std::string planned(uint32_t world, const ibv_device_attr& limits, uint32_t nics,
                    uint32_t stripes = 1) {
  std::vector<std::string> devices;
  std::map<std::string, ibv_device_attr> all;
  for (uint32_t i = 0; i < nics; ++i) {
    devices.push_back("nic" + std::to_string(i));
    all[devices.back()] = limits;
  }
  return shortage(world, 8, 4, 2, {devices, stripes}, all);
}

}  // namespace

TEST_CASE("a group that a NIC has too few queue pairs for is refused by name and numbers") {
  CHECK(planned(1024, connectx5(), 1) == "");
  CHECK(planned(256, fastlinq(), 1) == "");  // 8 ranks, 4 proxies: 248 links and one for greetings
  const std::string why = planned(512, fastlinq(), 1);
  CAPTURE(why);
  CHECK(why.find("RDMA device nic0 has 8568 queue pairs (max_qp), of which this agent uses 0, and "
                 "8 rank(s) of a group of 512 need 16160 more: ") == 0);
  CHECK(why.find("spec.proxies.perGPU") != std::string::npos);
  CHECK(why.find("spec.highThroughput.nicsPerGPU") != std::string::npos);
}

TEST_CASE("proxies share several NICs, and stripes take a queue pair on each") {
  CHECK(planned(512, fastlinq(), 1) != "");
  CHECK(planned(512, fastlinq(), 2) == "");  // half of the proxies each
  CHECK(planned(512, fastlinq(), 2, 2).find("need 16160 more") != std::string::npos);
  CHECK(planned(512, fastlinq(), 4, 2) == "");
  const std::vector<std::string> ports{"a", "b", "b"};  // two ports of one device
  NicUses uses;
  for (uint32_t proxy = 0; proxy < 3; ++proxy) NicPlan{ports, 2}.add(uses, proxy, link_use(10));
  CHECK(uses["a"].queue_pairs + uses["b"].queue_pairs == 60);
  CHECK(uses["b"].queue_pairs == 40);
}

TEST_CASE("a proxy needs its own NIC alone, and the next one stands by unless it is striped") {
  const std::vector<std::string> ports{"a", "b", "c"};
  NicUses uses;
  for (uint32_t proxy = 0; proxy < 4; ++proxy) NicPlan{ports, 1}.add(uses, proxy, endpoint_use(2));
  for (const std::string& device : ports)
    CHECK(uses[device].registrations == (device == "a" ? 2 : 1) * 5);
  CHECK(NicPlan{ports, 1}.spare_of(1) == "c");
  CHECK(NicPlan{ports, 1}.spare_of(2) == "a");
  CHECK_FALSE(NicPlan{ports, 2}.spare_of(1));
  CHECK_FALSE(NicPlan{std::span(ports).first(1), 1}.spare_of(1));
  CHECK_FALSE(NicPlan{}.spare_of(0));
  const NicPlan near{ports, 1, 1};  // one is near, the others stand by
  CHECK(near.devices_of(3) == std::vector<std::string>{"a"});
  CHECK(near.spare_of(3) == "b");
  CHECK(NicPlan{ports, 1, 2}.spare_of(3) == "c");
  CHECK(NicPlan{ports, 2, 2}.devices_of(3) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("each limit that is counted refuses what is one too many, beside what is in use") {
  for (const NicLimit& limit : kNicLimits) {
    CAPTURE(limit.name);
    ibv_device_attr device = connectx5();
    device.*limit.has = 10;
    NicUse used, more;
    used.*limit.taken = 7;
    more.*limit.taken = 3;
    CHECK(shortage("x", device, used, more, "they") == "");
    more.*limit.taken = 4;
    const std::string why = shortage("x", device, used, more, "they");
    CHECK(why.find(std::string("(") + limit.name +
                   "), of which this agent uses 7, and they need "
                   "4 more: ") != std::string::npos);
    device.*limit.has = 0;  // not told
    CHECK(shortage("x", device, used, more, "they") == "");
    device.*limit.has = 5;  // what asks for none of it fits, however full it is
    CHECK(shortage("x", device, used, {}, "they") == "");
  }
}

TEST_CASE("links that are left are those of which no limit refuses one") {
  ibv_device_attr device = connectx5();
  device.max_qp = 20;
  device.max_ah = 15;
  const NicUse used{.queue_pairs = 4, .handles = 1};
  for (const int handles : {15, 30, 0}) {  // scarcer than queue pairs, less scarce, not told
    device.max_ah = handles;
    const uint64_t left = links_left(device, used);
    CHECK(left == (handles == 15 ? 14 : 16));
    CHECK(shortage("x", device, used, link_use(left), "they") == "");
    CHECK(shortage("x", device, used, link_use(left + 1), "they") != "");
  }
  CHECK(links_left(device, {.queue_pairs = 30}) == 0);
}

TEST_CASE("a device whose queues are too short for any endpoint is told so") {
  CHECK(too_small(connectx5()) == "");
  CHECK(too_small(fastlinq()) == "");
  const auto refused = [](int ibv_device_attr::* limit, int value) {
    ibv_device_attr device = connectx5();
    device.*limit = value;
    return too_small(device);
  };
  CHECK(refused(&ibv_device_attr::max_qp_wr, 64).find("its max_qp_wr is 64") == 0);
  CHECK(refused(&ibv_device_attr::max_cqe, 256).find("its max_cqe is 256") == 0);
  CHECK(refused(&ibv_device_attr::max_srq_wr, 0).find("its max_srq_wr is 0") == 0);
  CHECK(refused(&ibv_device_attr::max_sge, 0).find("its max_sge is 0") == 0);
  CHECK(refused(&ibv_device_attr::max_cqe, 512) == "");
}

TEST_CASE("the printed budget counts what a session's endpoints and links are counted as") {
  const Shape shape{0, 64, 32, 1024, 16};
  for (const uint32_t stripes : {1u, 2u, 8u}) {
    const Budget at = budget_of(shape, 8, 4, 2, 256, stripes);
    CHECK(at.links == 4 * 56);
    CHECK(at.queue_pairs == stripes * 4 * (56 + 1));
    CHECK(at.registrations == stripes * 4 * (2 + 3));
  }
  CHECK_THROWS(budget_of(shape, 8, 4, 2, 256, 0));
  CHECK_THROWS(budget_of(shape, 8, 4, 2, 256, kMaxLines + 1));
}
