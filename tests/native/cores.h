// Cores of one process whose ranks form one group, with each rank's pod end; for the C++ tests that
// move data between threads.
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core.h"

namespace epfabric::agent {

inline constexpr uint64_t kTestLimitNs = 60'000'000'000;

struct GroupShape {
  std::vector<std::vector<uint32_t>> nodes;  // ranks of each node, one core each
  std::vector<uint32_t> proxies;             // by node
  uint32_t rings = 4;
  uint32_t depth = 16;
  uint32_t signals = 4;
  uint64_t bytes = 1 << 20;  // of each rank's region
  CoreSettings settings{};
  bool dissemination = false;
  uint64_t barrier_ns = kTestLimitNs;
  std::vector<std::vector<VerbsPort>> ports{};  // by node, where verbs moves the data
  bool mask = false;                            // a lost rank ends no epoch
  std::vector<std::vector<uint32_t>> nics{};    // by rank: its own order of its core's ports
  uint32_t nics_used = 0;                       // the first so many of them
};

// What a pod holds: producers, its region, the words that end a wait.
struct RankPod {
  std::shared_ptr<Session> session;
  std::vector<Producer> rings;
  FileDescriptor region_fd;

  std::byte* memory() const { return session->regions()[0].memory.data(); }
  AbortWords aborts() const {
    return {&session->segments().pod_header()->abort, &session->segments().header()->abort};
  }
  // False when the epoch failed, a word of `ends` was set or the bound passed.
  bool push(uint32_t ring, const Slot* slots, uint32_t count, const AbortWords& ends) {
    const uint64_t begin = platform::clock_ns();
    for (uint32_t look = 0; !rings[ring].try_push(slots, count); ++look) {
      if (ends.set() || platform::clock_ns() - begin > kTestLimitNs) return false;
      platform::pause(look);
    }
    return true;
  }
  bool push(uint32_t ring, const Slot& slot) { return push(ring, &slot, 1, aborts()); }
  bool wait(uint32_t ring, uint64_t ticket, const AbortWords& ends) const {
    const uint64_t* completed = &session->segments().counters(ring)->completed;
    return wait_at_least(completed, ticket + 1, ends, kTestLimitNs) == Waited::kDone;
  }
  bool run(uint32_t ring, const Slot& slot) {
    return push(ring, slot) && wait(ring, rings[ring].head - 1, aborts());
  }
};

inline void add_rings(RankPod& pod) {
  const Segments& segments = pod.session->segments();
  for (uint32_t ring = 0; ring < segments.shape().rings; ++ring) {
    pod.rings.push_back({const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0,
                         0, segments.shape().depth});
  }
}

inline RankPod make_pod(Core& core, const GroupShape& shape, uint32_t world, uint32_t rank,
                        uint32_t proxies) {
  RankPod pod;
  pod.session = core.open_session({1,
                                   {rank, world, shape.rings, shape.depth, shape.signals},
                                   std::vector<int>(proxies, -1),
                                   shape.bytes,
                                   0,
                                   shape.nics.empty() ? std::vector<uint32_t>{} : shape.nics[rank],
                                   shape.nics_used});
  pod.region_fd = FileDescriptor(::memfd_create("region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<std::byte> zeros(shape.bytes);
  REQUIRE(::write(pod.region_fd.get(), zeros.data(), shape.bytes) ==
          static_cast<ssize_t>(shape.bytes));
  pod.session->register_memfd(pod.region_fd.get(), shape.bytes);
  add_rings(pod);
  return pod;
}

struct CoreGroup {
  std::vector<std::unique_ptr<Core>> cores;  // by node
  std::vector<RankPod> pods;                 // by rank

  explicit CoreGroup(const GroupShape& shape) {
    uint32_t world = 0;
    for (const auto& ranks : shape.nodes) world += static_cast<uint32_t>(ranks.size());
    pods.resize(world);
    std::vector<uint32_t> node_of(world);
    for (uint32_t node = 0; node < shape.nodes.size(); ++node) {
      CoreSettings settings = shape.settings;
      settings.address = "127.0.2." + std::to_string(node + 1);
      if (!shape.ports.empty()) settings.ports = shape.ports[node];
      cores.push_back(std::make_unique<Core>(settings));
      for (const uint32_t rank : shape.nodes[node]) {
        pods[rank] = make_pod(*cores.back(), shape, world, rank, shape.proxies[node]);
        node_of[rank] = node;
      }
    }
    std::vector<std::thread> opening;  // an end may wait for the other one
    std::vector<std::string> failures(cores.size());
    for (uint32_t node = 0; node < shape.nodes.size(); ++node) {
      std::vector<std::shared_ptr<Session>> local;
      std::vector<RemoteRank> remote;
      for (uint32_t rank = 0; rank < world; ++rank) {
        const Session& session = *pods[rank].session;
        if (node_of[rank] == node) local.push_back(pods[rank].session);
        if (node_of[rank] != node)
          remote.push_back({rank, node_of[rank], encode(session.describe())});
      }
      opening.emplace_back([this, &shape, &failures, node, local, remote] {
        try {
          EpochPlan plan{1, 1, 0, shape.barrier_ns, shape.nodes, shape.mask};
          plan.dissemination = shape.dissemination;
          cores[node]->open_epoch(plan, local, remote);
        } catch (const NativeError& error) {
          failures[node] = error.what();
        }
      });
    }
    for (std::thread& thread : opening) thread.join();
    for (const std::string& failure : failures)
      if (!failure.empty()) throw NativeError(failure);
    for (const auto& core : cores) core->start_epoch(1);
  }

  void close() {
    for (const auto& core : cores) core->close_epoch(1);
    for (RankPod& pod : pods) pod.session->close(kTestLimitNs);
    for (const auto& core : cores) core->close();
  }
};

}  // namespace epfabric::agent
