// Signal words that a peer writes: they only grow, whatever it says. Not under TSan, which cannot
// see into libfabric.
#if !defined(__SANITIZE_THREAD__)

#include <chrono>
#include <thread>

#include "cores.h"

using namespace epfabric;
using namespace epfabric::agent;

TEST_CASE("a peer that would lower a signal word fails its group, and lowers nothing") {
  GroupShape shape;
  shape.nodes = {{0}, {1}};
  shape.proxies = {1, 1};
  shape.settings.provider = "tcp;ofi_rxm";
  CoreGroup group(shape);
  uint64_t* word = group.pods[1].session->segments().signal(0, 0, 3);
  platform::store_release(word, 5);  // as if the peer had said so: what it says next is 1
  Slot slot{};
  REQUIRE(pack_signal(1, 3, 1, slot));
  group.pods[0].run(0, slot);
  const uint64_t begin = platform::clock_ns();
  while (group.cores[1]->failure(1).empty() && platform::clock_ns() - begin < kTestLimitNs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(group.cores[1]->failure(1).find("a signal word that would shrink") != std::string::npos);
  CHECK(platform::load_acquire(word) == 5);
  group.close();
}

#endif
