// Address handles that a thread beside looks for: who asks for one is never kept, whatever it
// takes.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "verbs_handles.h"
#include "within.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

using Handle = std::unique_ptr<uint32_t>;

ibv_ah_attr route_to(uint32_t peer) {
  ibv_ah_attr out{};
  out.dlid = static_cast<uint16_t>(peer);
  return out;
}

// A kernel that looks for peers for as long as it is told to, and finds those with an even number.
struct Kernel {
  std::atomic<bool> held{false};
  std::atomic<uint32_t> begun{0};
  VerbsHandles<Handle> handles{[this](const ibv_ah_attr& route) {
    begun += 1;
    within([this] { return !held.load(); });
    return route.dlid % 2 == 0 ? std::make_unique<uint32_t>(route.dlid) : Handle{};
  }};

  void look(uint32_t peer) { handles.look(peer, route_to(peer)); }
};

}  // namespace

TEST_CASE("who asks for a way to a peer that does not answer is not kept, and is told once") {
  Kernel kernel;
  kernel.held = true;
  for (const uint32_t peer : {1u, 2u, 1u, 2u}) kernel.look(peer);
  CHECK(within([&] { return kernel.begun == 1; }));
  for (const uint32_t peer : {1u, 2u, 3u}) {
    CHECK_FALSE(kernel.handles.take(peer));
    CHECK_FALSE(kernel.handles.failed(peer));
  }
  kernel.held = false;
  Handle found;
  CHECK(within([&] { return (found = kernel.handles.take(2)) != nullptr; }));
  CHECK(*found == 2);
  CHECK(within([&] { return kernel.handles.failed(1); }));
  CHECK_FALSE(kernel.handles.failed(2));
  kernel.look(1);  // in vain before
  kernel.look(4);
  CHECK(within([&] { return kernel.handles.take(4) != nullptr; }));
  CHECK(kernel.begun == 3);
}

TEST_CASE("an endpoint that goes leaves nobody behind who looks for ways") {
  for (uint32_t i = 0; i < 8; ++i) {
    std::atomic<uint32_t> begun{0}, ended{0};
    {
      VerbsHandles<Handle> handles([&](const ibv_ah_attr&) {
        begun += 1;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
        ended += 1;
        return Handle{};
      });
      for (uint32_t peer = 0; peer < 8; ++peer) handles.look(peer, route_to(peer));
      CHECK(within([&] { return begun > i; }));
    }
    CHECK(begun == ended);
  }
}

TEST_CASE("a thread that has just found the last way begins anew for the next one") {
  Kernel kernel;
  for (uint32_t peer = 0; peer < 60; ++peer) {
    kernel.look(peer);
    if (peer % 3 != 0) continue;
    CHECK(within([&] { return kernel.handles.failed(peer) || kernel.handles.take(peer); }));
  }
  CHECK(within([&] { return kernel.begun == 60; }));
}
