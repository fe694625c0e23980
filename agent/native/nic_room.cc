// The sums behind nic_room.h, and what it says.
#include "nic_room.h"

#include <algorithm>
#include <limits>

#include "standby.h"
#include "verbs_choice.h"

namespace epfabric::agent {
namespace {

std::string remedy_of(const NicLimit& limit) {
  if (limit.taken == &NicUse::registrations)
    return "register fewer and larger regions, or use fewer proxies (spec.proxies.perGPU)";
  const bool grows = limit.taken == &NicUse::queue_pairs || limit.taken == &NicUse::handles;
  return std::string(
             "use fewer proxies (spec.proxies.perGPU) or NICs for a GPU "
             "(spec.highThroughput.nicsPerGPU), ") +
         (grows ? "make the group smaller, " : "put fewer ranks on the node, ") +
         "or raise the device's limit if its firmware or driver can";
}

}  // namespace

void NicUse::add(const NicUse& more) {
  for (const NicLimit& limit : kNicLimits) this->*limit.taken += more.*limit.taken;
}

void NicUse::remove(const NicUse& gone) {
  for (const NicLimit& limit : kNicLimits) this->*limit.taken -= gone.*limit.taken;
}

std::vector<std::string> NicPlan::devices_of(uint32_t proxy) const {
  std::vector<std::string> out;
  if (devices.empty()) return out;
  for (const uint32_t port : lines_of(proxy, stripes, spread())) out.push_back(devices[port]);
  return out;
}

std::optional<std::string> NicPlan::spare_of(uint32_t proxy) const {
  if (stripes > 1 || devices.empty()) return std::nullopt;
  const auto port = agent::spare_of(proxy % spread(), static_cast<uint32_t>(devices.size()));
  if (!port) return std::nullopt;
  return devices[*port];
}

void NicPlan::add(NicUses& to, uint32_t proxy, const NicUse& of_each) const {
  for (const std::string& device : devices_of(proxy)) to[device].add(of_each);
}

std::string shortage(const std::string& device, const ibv_device_attr& limits, const NicUse& used,
                     const NicUse& more, const std::string& whose) {
  for (const NicLimit& limit : kNicLimits) {
    const int has = limits.*limit.has;
    const uint64_t taken = used.*limit.taken, wanted = more.*limit.taken;
    if (has <= 0 || wanted == 0 || taken + wanted <= static_cast<uint64_t>(has)) continue;
    return "RDMA device " + device + " has " + std::to_string(has) + " " + limit.of + " (" +
           limit.name + "), of which this agent uses " + std::to_string(taken) + ", and " + whose +
           " need " + std::to_string(wanted) + " more: " + remedy_of(limit);
  }
  return "";
}

uint64_t links_left(const ibv_device_attr& limits, const NicUse& used) {
  constexpr NicUse kLink = link_use(1);
  uint64_t out = std::numeric_limits<uint64_t>::max();
  for (const NicLimit& limit : kNicLimits) {
    const int has = limits.*limit.has;
    if (kLink.*limit.taken == 0 || has <= 0) continue;
    const uint64_t taken = std::min(used.*limit.taken, static_cast<uint64_t>(has));
    out = std::min(out, static_cast<uint64_t>(has) - taken);
  }
  return out;
}

std::string shortage(uint32_t world, uint32_t ranks_per_node, uint32_t proxies, uint32_t regions,
                     const NicPlan& plan, const std::map<std::string, ibv_device_attr>& limits) {
  const uint32_t here = std::min(world, ranks_per_node);
  NicUse of_each = endpoint_use(regions);
  of_each.add(link_use(world - here));
  NicUses uses;
  for (uint32_t rank = 0; rank < here; ++rank) {
    for (uint32_t proxy = 0; proxy < proxies; ++proxy)  // i to proxy i of each
      plan.add(uses, proxy, of_each);
  }
  for (const auto& [device, wanted] : uses) {
    const std::string why =
        shortage(device, limits.at(device), {0, 0, 0, 1, 0, 0}, wanted,
                 std::to_string(here) + " rank(s) of a group of " + std::to_string(world));
    if (!why.empty()) return why;
  }
  return "";
}

std::string too_small(const ibv_device_attr& limits) {
  struct Least {
    const char* name;
    int has;
    uint32_t needs;
  };
  const QueueSizes sizes = choose_sizes(limits, 1);
  for (const Least& least :
       {Least{"max_qp_wr", limits.max_qp_wr, kGreetings},
        Least{"max_cqe", limits.max_cqe, sizes.receive + 2 * kGreetings + 1},
        Least{"max_srq_wr", limits.max_srq_wr, 1}, Least{"max_sge", limits.max_sge, 1}}) {
    if (least.has >= static_cast<int>(least.needs)) continue;
    return std::string("its ") + least.name + " is " + std::to_string(least.has) +
           ", and the least that verbs works with here is " + std::to_string(least.needs) +
           ": use another NIC, or libfabric";
  }
  return "";
}

}  // namespace epfabric::agent
