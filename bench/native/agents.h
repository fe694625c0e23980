// Agents and pods of a bench, each a process of its own: every agent holds a core with its node's
// sessions, every pod the two segments of its rank, as in a cluster. Used by paths.cc.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <string>

#include "core.h"
#include "processes.h"

namespace epfabric::bench {

inline constexpr uint64_t kRegionBytes = 1 << 20;
inline constexpr uint64_t kAgentLimitNs = 60'000'000'000;

inline void send_descriptors(const Wire& wire, std::span<const int, 2> fds) {
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  char byte = 0;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  *head = {CMSG_LEN(fds.size_bytes()), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(head), fds.data(), fds.size_bytes());
  if (::sendmsg(wire.fd(), &message, 0) != 1) give_up("passing descriptors failed");
}

inline std::array<int, 2> receive_descriptors(const Wire& wire) {
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  char byte;
  iovec data{&byte, 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const cmsghdr* head = nullptr;
  if (::recvmsg(wire.fd(), &message, 0) == 1) head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_len != CMSG_LEN(2 * sizeof(int))) give_up("no descriptors");
  std::array<int, 2> out;
  std::memcpy(out.data(), CMSG_DATA(head), sizeof(out));
  return out;
}

// A rank's memory, mapped before the agents are forked: after its registration nobody could.
struct PodRegion {
  int fd = ::memfd_create("bench-region", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  std::byte* data = nullptr;
  PodRegion() {
    const std::vector<std::byte> zeros(kRegionBytes);
    if (::write(fd, zeros.data(), kRegionBytes) != ssize_t{kRegionBytes}) give_up("no region");
    void* mapped = ::mmap(nullptr, kRegionBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) give_up("mapping a region failed");
    data = static_cast<std::byte*>(mapped);
  }
};

// How the agents' groups are connected.
struct Links {
  bool dissemination = false;
  bool verbs = false;    // over the VM's first rail, for two agents; else over tcp
  uint32_t proxies = 1;  // of each rank, with a ring each
};

// The pod's end of one session: its first ring, and some others that only stir() uses.
class Pod {
 public:
  Pod(const agent::Shape& shape, const std::array<int, 2>& fds) {
    const Layout at = layout_of(shape.rings, shape.depth, shape.signals, shape.world);
    const auto map = [](int fd, uint64_t bytes, int rights) {
      void* out = ::mmap(nullptr, bytes, rights, MAP_SHARED, fd, 0);
      if (out == MAP_FAILED) give_up("mapping a segment failed");
      return static_cast<std::byte*>(out);
    };
    std::byte* pod = map(fds[0], at.pod_bytes, PROT_READ | PROT_WRITE);
    std::byte* agent = map(fds[1], at.agent_bytes, PROT_READ);
    const auto* counters = reinterpret_cast<const RingCounters*>(agent + at.counters);
    completed_ = &counters->completed;
    signals_ = reinterpret_cast<const uint64_t*>(agent + at.signals);
    aborts_ = {&reinterpret_cast<const PodHeader*>(pod)->abort,
               &reinterpret_cast<const AgentHeader*>(agent)->abort};
    auto* slots = reinterpret_cast<Slot*>(pod + at.slots);
    ring_ = {slots, &counters->tail, 0, 0, shape.depth};
    for (uint32_t i = 1; i < shape.rings; ++i) {
      others_.push_back({{slots + uint64_t{i} * shape.depth, &counters[i].tail, 0, 0, shape.depth},
                         &counters[i].completed});
    }
    shape_ = shape;
  }

  void push(const Slot& slot) {
    for (uint32_t look = 0; !ring_.try_push(&slot, 1); ++look) platform::pause(look);
  }
  // Gives each proxy but the first a signal to the rank itself: for a second it does not block.
  void stir() {
    Slot slot{};
    if (!pack_signal(shape_.rank, 0, 1, slot)) give_up("no signal");
    for (auto& [ring, completed] : others_) {
      if (!ring.try_push(&slot, 1)) give_up("a quiet ring is full");
      wait(completed, ring.head);
    }
  }
  // Goes on behind what another process pushed.
  void resume(uint64_t head) { ring_.head = head; }
  void wait_all() { wait(completed_, ring_.head); }
  // The first signal word that `source` writes here.
  void wait_signal(uint32_t source, uint64_t value) {
    wait(&signals_[uint64_t{source} * shape_.rings * shape_.signals], value);
  }

 private:
  void wait(const uint64_t* word, uint64_t value) const {
    if (wait_at_least(word, value, aborts_, kAgentLimitNs) != Waited::kDone)
      give_up("a pod's wait failed");
  }

  agent::Shape shape_{};
  Producer ring_{};
  std::vector<std::pair<Producer, const uint64_t*>> others_;  // and how far they are completed
  const uint64_t* completed_ = nullptr;
  const uint64_t* signals_ = nullptr;
  AbortWords aborts_{};
};

// In the agent's process: opens the sessions, tells main() of them, joins them, serves until told.
[[noreturn]] inline void run_agent(const Wire& wire, uint32_t node,
                                   const std::vector<std::vector<uint32_t>>& nodes,
                                   const std::vector<PodRegion>& regions, agent::Shape shape,
                                   const Links& links) {
  agent::CoreSettings settings;
  if (links.verbs) {
    settings.ports = {{node == 0 ? "ra0" : "rb0", 1, "10.9.0." + std::to_string(node + 1)}};
  } else {
    settings.address = "127.0.4." + std::to_string(node + 1);
    settings.provider = nodes.size() > 1 ? "tcp;ofi_rxm" : "";
  }
  agent::Core core(settings);
  std::vector<std::shared_ptr<agent::Session>> sessions;
  for (const uint32_t rank : nodes[node]) {
    shape.rank = rank;
    sessions.push_back(
        core.open_session({1, shape, std::vector<int>(links.proxies, -1), kRegionBytes}));
    sessions.back()->register_memfd(regions[rank].fd, kRegionBytes);
    const agent::Shared shared = sessions.back()->share();
    send_descriptors(wire, std::array{shared.pod.get(), shared.agent.get()});
    wire.send(agent::encode(sessions.back()->describe()));
  }
  std::vector<agent::RemoteRank> remote;
  for (uint32_t other = 0; other < nodes.size(); ++other) {
    if (other == node) continue;
    for (const uint32_t rank : nodes[other]) remote.push_back({rank, other, wire.receive()});
  }
  agent::EpochPlan plan{1, 1, 0, kAgentLimitNs, nodes};
  plan.dissemination = links.dissemination;
  core.open_epoch(plan, sessions, remote);
  wire.tell(1);
  wire.receive();
  core.start_epoch(1);
  wire.tell(1);
  uint8_t ignored;
  (void)!::recv(wire.fd(), &ignored, 1, 0);
  core.close_epoch(1);
  core.close();
  ::_exit(0);
}

// All agents, running; made by main() before it has threads.
class Agents {
 public:
  Agents(const std::vector<std::vector<uint32_t>>& nodes, uint32_t world, const Links& links = {})
      : regions_(world) {
    shape_.world = world;
    shape_.rings = links.proxies;
    fds_.resize(world);
    std::vector<std::vector<std::byte>> blobs(world);
    for (uint32_t node = 0; node < nodes.size(); ++node) {
      int fd;
      children_.push_back(fork_with(fd, 240));
      if (children_.back() == 0) run_agent(Wire(fd), node, nodes, regions_, shape_, links);
      wires_.emplace_back(fd);
    }
    for (uint32_t node = 0; node < nodes.size(); ++node) {
      for (const uint32_t rank : nodes[node]) {
        fds_[rank] = receive_descriptors(wires_[node]);
        blobs[rank] = wires_[node].receive();
      }
    }
    for (uint32_t node = 0; node < nodes.size(); ++node) {
      for (uint32_t other = 0; other < nodes.size(); ++other) {
        if (other == node) continue;
        for (const uint32_t rank : nodes[other]) wires_[node].send(blobs[rank]);
      }
    }
    for (const Wire& wire : wires_) wire.receive();
    for (const Wire& wire : wires_) wire.tell(1);
    for (const Wire& wire : wires_) wire.receive();
  }

  Pod pod(uint32_t rank) const { return Pod(shape_, fds_[rank]); }
  std::byte* memory(uint32_t rank) const { return regions_[rank].data; }
  void end() {
    for (const Wire& wire : wires_) wire.tell(0);
    for (const pid_t child : children_) {
      if (!ended_well(child)) give_up("an agent did not end well");
    }
  }

 private:
  agent::Shape shape_{0, 0, 1, 64, 1};
  std::vector<PodRegion> regions_;
  std::vector<std::array<int, 2>> fds_;  // by rank
  std::vector<pid_t> children_;
  std::vector<Wire> wires_;
};

}  // namespace epfabric::bench
