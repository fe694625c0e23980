// Two cores over tcp;ofi_rxm with random writes and barriers, for ASan and UBSan. Not under TSan,
// which cannot see into libfabric.
#if !defined(__SANITIZE_THREAD__)

#include <doctest/doctest.h>
#include <fcntl.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "core.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kLimitNs = 60'000'000'000;
constexpr uint64_t kBytes = 1 << 20;
constexpr uint32_t kRings = 4;

struct Node {
  std::unique_ptr<Core> core;
  std::shared_ptr<Session> session;
  std::vector<Producer> rings;
  FileDescriptor region_fd;

  std::byte* memory() const { return session->regions()[0].memory.data(); }
  bool run(uint32_t ring, const Slot& slot) {
    const AbortWords aborts{&session->segments().pod_header()->abort,
                            &session->segments().header()->abort};
    const uint64_t begin = platform::clock_ns();
    for (uint32_t look = 0; !rings[ring].try_push(&slot, 1); ++look) {
      if (aborts.set() || platform::clock_ns() - begin > kLimitNs) return false;
      platform::pause(look);
    }
    return wait_at_least(&session->segments().counters(ring)->completed, rings[ring].head, aborts,
                         kLimitNs) == Waited::kDone;
  }
};

Node make_node(uint32_t rank, uint32_t proxies) {
  Node node;
  CoreSettings settings;
  settings.address = "127.0.2." + std::to_string(rank + 1);
  settings.provider = "tcp;ofi_rxm";
  node.core = std::make_unique<Core>(settings);
  node.session =
      node.core->open_session({1, {rank, 2, kRings, 64, 4}, std::vector<int>(proxies, -1), kBytes});
  node.region_fd = FileDescriptor(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<std::byte> zeros(kBytes);
  REQUIRE(::write(node.region_fd.get(), zeros.data(), kBytes) == ssize_t{kBytes});
  node.session->register_memfd(node.region_fd.get(), kBytes);
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    const Segments& segments = node.session->segments();
    node.rings.push_back(
        {const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0, 64});
  }
  return node;
}

}  // namespace

TEST_CASE("random writes over tcp arrive, with another number of proxies at each end") {
  const uint64_t seed = std::random_device{}();
  std::printf("tcp_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Node nodes[] = {make_node(0, 3), make_node(1, 2)};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const RemoteRank other{1 - rank, 1 - rank, encode(nodes[1 - rank].session->describe())};
    nodes[rank].core->open_epoch({1, 1, 0, kLimitNs, {{0}, {1}}}, {nodes[rank].session}, {other});
  }
  for (Node& node : nodes) node.core->start_epoch(1);
  for (uint64_t i = 0; i < kBytes; ++i) nodes[0].memory()[i] = static_cast<std::byte>(random());
  std::vector<std::byte> expected(kBytes);
  for (int i = 0; i < 400; ++i) {
    const auto units = static_cast<uint32_t>(1 + random() % 2048);
    const auto from = static_cast<uint32_t>(random() % (kBytes / 16 - units + 1));
    const auto to = static_cast<uint32_t>(random() % (kBytes / 16 - units + 1));
    Slot slot{};
    REQUIRE(pack_write({1, from, to, units, 2, 1}, slot));
    REQUIRE(nodes[0].run(static_cast<uint32_t>(random() % kRings), slot));
    std::memcpy(&expected[to * 16], nodes[0].memory() + from * 16, units * 16);
  }
  std::thread other([&] { nodes[1].run(0, pack_barrier()); });
  CHECK(nodes[0].run(0, pack_barrier()));
  other.join();
  CHECK(std::memcmp(nodes[1].memory(), expected.data(), kBytes) == 0);
  uint64_t signals = 0;
  for (uint32_t ring = 0; ring < kRings; ++ring) {
    signals += *nodes[1].session->segments().signal(0, ring, 2);
  }
  CHECK(signals == 400);
  for (Node& node : nodes) node.core->close();
}

#endif
