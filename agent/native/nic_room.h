// What RDMA devices say that they take, and what this agent's sessions and groups take of them.
// Pure. nic_ledger.h refuses by it before anything is made; the agent's `budget` command prints it.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stripes.h"

namespace epfabric::agent {

// Taken of one device.
struct NicUse {
  uint64_t queue_pairs = 0;
  uint64_t completion_queues = 0;
  uint64_t receive_queues = 0;
  uint64_t domains = 0;
  uint64_t registrations = 0;
  uint64_t handles = 0;
  void add(const NicUse& more);
  void remove(const NicUse& gone);
};
using NicUses = std::map<std::string, NicUse>;  // by device

// An endpoint: a queue pair for datagrams; registered are their buffers, mailboxes, records to send
// and regions.
constexpr NicUse endpoint_use(uint32_t regions) { return {1, 1, 1, 1, uint64_t{regions} + 3, 0}; }
// Links of an endpoint.
constexpr NicUse link_use(uint64_t links) { return {links, 0, 0, 0, 0, links}; }

// The ports of an agent's devices, and over how many of them a proxy stripes its links; with 1 one
// stands by, where it has room.
struct NicPlan {
  std::span<const std::string> devices;  // by port
  uint32_t stripes = 1;
  uint32_t used = 0;  // the first so many share the proxies; 0: all
  // Of the ports that the links of proxy `proxy` use; none where there is no port.
  std::vector<std::string> devices_of(uint32_t proxy) const;
  // Of the one that stands by.
  std::optional<std::string> spare_of(uint32_t proxy) const;
  // Adds what it needs of each that its links use.
  void add(NicUses& to, uint32_t proxy, const NicUse& of_each) const;
  uint32_t spread() const {
    const auto all = static_cast<uint32_t>(devices.size());
    return used > 0 ? std::min(used, all) : all;
  }
};

// A limit that is counted: as the device calls it, and what it is of.
struct NicLimit {
  const char* name;
  const char* of;
  int ibv_device_attr::* has;
  uint64_t NicUse::* taken;
};
inline constexpr std::array<NicLimit, 6> kNicLimits{{
    {"max_qp", "queue pairs", &ibv_device_attr::max_qp, &NicUse::queue_pairs},
    {"max_cq", "completion queues", &ibv_device_attr::max_cq, &NicUse::completion_queues},
    {"max_srq", "shared receive queues", &ibv_device_attr::max_srq, &NicUse::receive_queues},
    {"max_pd", "protection domains", &ibv_device_attr::max_pd, &NicUse::domains},
    {"max_mr", "registrations of memory", &ibv_device_attr::max_mr, &NicUse::registrations},
    {"max_ah", "address handles", &ibv_device_attr::max_ah, &NicUse::handles},
}};
// The others, of one queue or region.
struct QueueLimit {
  const char* name;
  int ibv_device_attr::* has;
};
inline constexpr std::array<QueueLimit, 7> kQueueLimits{{
    {"max_qp_wr", &ibv_device_attr::max_qp_wr},
    {"max_cqe", &ibv_device_attr::max_cqe},
    {"max_srq_wr", &ibv_device_attr::max_srq_wr},
    {"max_sge", &ibv_device_attr::max_sge},
    {"max_srq_sge", &ibv_device_attr::max_srq_sge},
    {"max_qp_rd_atom", &ibv_device_attr::max_qp_rd_atom},
    {"max_qp_init_rd_atom", &ibv_device_attr::max_qp_init_rd_atom},
}};

// Why `more`, which is `whose`, does not fit beside `used`, with the numbers; empty where it does.
// A limit of 0 is one that the device does not tell.
std::string shortage(const std::string& device, const ibv_device_attr& limits, const NicUse& used,
                     const NicUse& more, const std::string& whose);

// How many more links fit beside `used`.
uint64_t links_left(const ibv_device_attr& limits, const NicUse& used);

// Why the part of any node does not fit in a group whose ranks are all alike, and alone there;
// empty where it does.
std::string shortage(uint32_t world, uint32_t ranks_per_node, uint32_t proxies, uint32_t regions,
                     const NicPlan& plan, const std::map<std::string, ibv_device_attr>& limits);

// Why no endpoint can be made whatever else is there: which limit, and the least that it needs.
std::string too_small(const ibv_device_attr& limits);

}  // namespace epfabric::agent
