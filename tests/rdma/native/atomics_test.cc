// ATOMICs of cores of one process over soft RoCE, applied by the NIC of their owner and by its
// agent, as it was asked for; and a group that several NICs reach.
#include "ends.h"
#include "hammer.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

GroupShape shape_of(const std::string& atomics) {
  GroupShape out{{{0, 1}, {2}}, {2, 1}, 2, 16, 2, 65536};
  out.ports = {{port_at('a', 0)}, {port_at('b', 0)}};
  out.settings.atomics = atomics;
  out.settings.limits.stall_ns = kTestLimitNs;  // emulated on a busy machine
  out.settings.connect_timeout_ns = kTestLimitNs;
  return out;
}

void hammer(const std::string& atomics, const std::string& chosen) {
  CoreGroup group(shape_of(atomics));
  for (const auto& core : group.cores) CHECK(core->atomics(1).starts_with(chosen));
  check_atomics(group.pods, 200,
                [] { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}

}  // namespace

TEST_CASE("atomics by NIC are one chain, and behind their ring's writes, over soft RoCE") {
  hammer("hardware", "hardware: ");
}

TEST_CASE("atomics by the owner's agent are one chain, too, over soft RoCE") {
  hammer("emulated", "emulated: spec.atomics says so");
}

TEST_CASE("a group that several NICs reach is refused atomics by NIC") {
  GroupShape shape = shape_of("hardware");
  shape.ports = {{port_at('a', 0), port_at('a', 1)}, {port_at('b', 0), port_at('b', 1)}};
  std::string said;
  try {
    CoreGroup group(shape);
  } catch (const NativeError& error) {
    said = error.what();
  }
  CHECK(said.find("rank 0 is reached by several NICs") != std::string::npos);
}
