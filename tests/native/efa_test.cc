// EFA devices, for which twin_provider.cc stands here: which of libfabric's answers is taken, and
// what is refused. What moves over them is in atomics_test.cc.
#include <doctest/doctest.h>

#include "cores.h"
#include "fabric.h"

using namespace epfabric::agent;

namespace {

Fabric efa(const std::string& device) { return Fabric(kEfa, "127.0.0.1", false, device); }

std::string refusal(const std::string& device) {
  CoreSettings settings;
  settings.address = "127.0.0.1";
  settings.provider = kEfa;
  settings.ports = {{"rdmap0", 1, ""}, {device, 1, ""}};
  try {
    const Core core(settings);
  } catch (const NativeError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an EFA device is found by its name, over the fabric that takes no receives from us") {
  for (const std::string device : {"rdmap0", "rdmap1"}) {
    const Fabric fabric = efa(device);
    CHECK(fabric.info().nic->device_attr->name == device);
    CHECK(std::string(fabric.info().fabric_attr->name) == "efa");
    CHECK_FALSE(fabric.ordered());
    CHECK(fabric.place() == device);
    CHECK_NOTHROW(GatedFabricEndpoint{fabric});
  }
}

TEST_CASE("two EFA endpoints know each other's addresses, and a cut one is refused") {
  const Fabric fabric = efa("rdmap0");
  GatedFabricEndpoint endpoint(fabric);
  const Fabric other = efa("rdmap1");
  const GatedFabricEndpoint there(other);
  std::vector<std::byte> address = there.address();
  CHECK(address.size() == 33);
  CHECK_NOTHROW(endpoint.insert({address, 0, 0}));
  address.pop_back();
  CHECK_THROWS_AS(endpoint.insert({address, 0, 0}), NativeError);
}

TEST_CASE("a core names the EFA device that is unfit, cannot be opened, or is not there") {
  CHECK(refusal("rdmap1") == "");
  CHECK(refusal("rdmap2").find("rdmap2 is unfit: it has no RDMA write") == 0);
  CHECK(refusal("rdmap3").find(" on rdmap3 failed: ") != std::string::npos);
  const std::string absent = refusal("rdmap7");
  CHECK(absent.find("'efa' cannot be used on rdmap7: ") != std::string::npos);
}

TEST_CASE("a core takes devices for EFA alone") {
  CoreSettings settings;
  settings.address = "127.0.0.1";
  settings.provider = "tcp;ofi_rxm";
  settings.ports = {{"rdmap0", 1, ""}};
  CHECK_THROWS_AS(Core{settings}, NativeError);
}
