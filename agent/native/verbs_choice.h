// What is chosen by what a device reports: the GID, the way to register memory, the sizes of
// queues. Pure; quirks of vendors stand in the one table here. Used by verbs_device.cc.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

namespace epfabric::agent {

using Gid = std::array<uint8_t, 16>;

// The entry of `port` that holds `wanted`, RoCE v2 before the others; nullptr = none. The index of
// an address changes whenever addresses come and go, so that it is never kept.
inline const ibv_gid_entry* find_gid(std::span<const ibv_gid_entry> table, uint32_t port,
                                     const Gid& wanted) {
  const ibv_gid_entry* out = nullptr;
  for (const ibv_gid_entry& entry : table) {
    if (entry.port_num != port || std::memcmp(entry.gid.raw, wanted.data(), wanted.size()) != 0)
      continue;
    if (out == nullptr || entry.gid_type == IBV_GID_TYPE_ROCE_V2) out = &entry;
  }
  return out;
}

// How memory becomes known to the NIC.
enum class MemoryKind : uint8_t {
  kPinned,    // host memory, its pages held
  kOnDemand,  // host memory, its pages looked up by the NIC when they are used
  kDmaBuf,    // another device's memory
  kNone,      // this device cannot reach it
};

struct MemoryAbility {
  bool dma_buf = false;  // libibverbs has the call; whether the kernel's driver has shows the call
  bool on_demand = false;  // for writes and reads of a reliable connection
  bool atomics_on_demand = false;
};

// On-demand paging only where pages may not be held: each first use of a page costs the NIC a
// fault.
constexpr MemoryKind choose_memory(bool foreign, bool may_pin, const MemoryAbility& ability) {
  if (foreign) return ability.dma_buf ? MemoryKind::kDmaBuf : MemoryKind::kNone;
  if (may_pin) return MemoryKind::kPinned;
  return ability.on_demand ? MemoryKind::kOnDemand : MemoryKind::kNone;
}

// What a vendor's device does otherwise than its attributes say.
struct Quirk {
  uint32_t vendor_id;
  const char* unfit;    // why this transport cannot use it; nullptr = it can
  uint8_t ack_timeout;  // 4.096 µs · 2^n until a packet is sent again
};

inline constexpr uint8_t kAckTimeout = 14;  // 67 ms, seven times: half a second to a second
inline constexpr std::array<Quirk, 2> kQuirks{{
    {0x1d0f, "it has no reliable connections: choose libfabric", kAckTimeout},  // EFA
    {0xffffff, nullptr, 17},  // soft RoCE answers when its CPU has time
}};

constexpr Quirk quirk_of(uint32_t vendor_id) {
  for (const Quirk& quirk : kQuirks) {
    if (quirk.vendor_id == vendor_id) return quirk;
  }
  return {vendor_id, nullptr, kAckTimeout};
}

struct QueueSizes {
  uint32_t send;     // WRs of one queue pair
  uint32_t receive;  // WRs of the shared receive queue
  uint32_t total;    // completions that the queue has room for
};

inline constexpr uint32_t kGreetings = 128;  // datagrams, for each direction

// As much as is useful, never more than the device allows. A write with its record takes two WRs.
// A spare's are an eighth and a quarter as long.
inline QueueSizes choose_sizes(const ibv_device_attr& device, uint32_t inflight,
                               bool spare = false) {
  const auto at_most = [](int64_t wanted, int limit) {
    return static_cast<uint32_t>(std::clamp<int64_t>(limit, 1, std::max<int64_t>(wanted, 1)));
  };
  QueueSizes out{};
  out.send = at_most(int64_t{2} * inflight + 64, device.max_qp_wr);
  out.receive = at_most(std::min(spare ? 512 : 2048, device.max_cqe / 4), device.max_srq_wr);
  out.total = at_most(int64_t{spare ? 2048 : 16384} + out.receive + 2 * kGreetings, device.max_cqe);
  return out;
}

}  // namespace epfabric::agent
