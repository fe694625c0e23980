// The limits of RDMA devices as Python's dicts; included by module.cc alone, as module_counts.h.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "core.h"
#include "queue_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace epfabric::agent {

inline nb::dict limits_dict(const ibv_device_attr& limits) {
  nb::dict out;
  for (const NicLimit& limit : kNicLimits) out[limit.name] = limits.*limit.has;
  for (const QueueLimit& limit : kQueueLimits) out[limit.name] = limits.*limit.has;
  out["max_mr_size"] = limits.max_mr_size;
  return out;
}

inline nb::dict nics_dict(const Core& core) {
  const NicUses uses = core.nic_uses();
  nb::dict out;
  for (const auto& [device, limits] : core.nic_limits()) {
    nb::dict used;
    for (const NicLimit& limit : kNicLimits) used[limit.name] = uses.at(device).*limit.taken;
    out[device.c_str()] = nb::make_tuple(limits_dict(limits), used);
  }
  return out;
}

inline nb::dict rdma_limits_dict() {
  nb::dict out;
  for (const std::string& device : rdma_devices()) {
    const ibv_device_attr limits = limits_of(device);
    out[device.c_str()] = limits_dict(limits);
  }
  return out;
}

// `limits`: by device, each with at least the names of kNicLimits; proxies use them in this order.
inline std::string nic_shortage(uint32_t world, uint32_t ranks_per_node, uint32_t proxies,
                                uint32_t nics_per_gpu, uint32_t regions, const nb::dict& limits) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  std::vector<std::string> devices;
  std::map<std::string, ibv_device_attr> by_device;
  for (const auto& [key, value] : limits) {
    const nb::dict told = nb::cast<nb::dict>(value);
    devices.push_back(nb::cast<std::string>(key));
    ibv_device_attr& at = by_device[devices.back()];
    for (const NicLimit& limit : kNicLimits)
      at.*limit.has = static_cast<int>(std::min(nb::cast<int64_t>(told[limit.name]), kMost));
  }
  return shortage(world, ranks_per_node, proxies, regions, {devices, nics_per_gpu}, by_device);
}

// At most: of a device whose queues may be as long as is useful.
inline std::tuple<uint64_t, uint64_t, uint64_t> queue_memory_of(uint32_t inflight) {
  ibv_device_attr ample{};
  ample.max_qp_wr = ample.max_cqe = ample.max_srq_wr = std::numeric_limits<int>::max();
  const uint32_t inlined = VerbsPort{}.inlined;
  const QueueMemory at = queue_memory(choose_sizes(ample, inflight), inlined);
  const QueueMemory spare = queue_memory(choose_sizes(ample, inflight, true), inlined);
  return {at.endpoint, spare.endpoint, at.link};
}

inline void bind_nics(nb::module_& module) {
  module.def("rdma_limits", &rdma_limits_dict);
  module.def("queue_memory", &queue_memory_of, "max_inflight"_a);
  module.def("nic_shortage", &nic_shortage, nb::kw_only(), "world"_a, "ranks_per_node"_a,
             "proxies"_a, "nics_per_gpu"_a, "regions"_a, "limits"_a);
}

}  // namespace epfabric::agent
