// The Python module epfabric_agent._native: with module_counts.h and module_nics.h all that knows
// Python. Every call that can block releases the GIL. The types are described in
// epfabric_agent/_native.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>

#include "core.h"
#include "module_counts.h"
#include "module_nics.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kMs = 1'000'000;
using Unlocked = nb::call_guard<nb::gil_scoped_release>;

nb::bytes to_bytes(const std::vector<std::byte>& data) {
  return nb::bytes(data.data(), data.size());
}

std::vector<std::byte> from_bytes(const nb::bytes& data) {
  const auto* begin = static_cast<const std::byte*>(data.data());
  return {begin, begin + data.size()};
}

nb::dict layout_dict(uint32_t rings, uint32_t depth, uint32_t signals, uint32_t world) {
  if (!layout_valid(rings, depth, signals, world)) {
    throw NativeError("rings 1-64, depth a power of two 16-65536, signals 1-2048, world 1-4096");
  }
  const Layout at = layout_of(rings, depth, signals, world);
  nb::dict out;
  const auto put = [&out](const char* name, uint64_t value) { out[name] = value; };
  put("slots", at.slots);
  put("pod_bytes", at.pod_bytes);
  put("counters", at.counters);
  put("mask", at.mask);
  put("results", at.results);
  put("signals", at.signals);
  put("agent_bytes", at.agent_bytes);
  put("abi", kAbiVersion);
  put("slot_bytes", sizeof(Slot));
  put("ring_counters_bytes", sizeof(RingCounters));
  put("pod_abort", offsetof(PodHeader, abort));
  put("agent_abort", offsetof(AgentHeader, abort));
  put("heartbeat", offsetof(AgentHeader, heartbeat));
  put("epoch", offsetof(AgentHeader, epoch));
  put("ring_tail", offsetof(RingCounters, tail));
  put("ring_completed", offsetof(RingCounters, completed));
  put("ring_refused", offsetof(RingCounters, refused));
  put("ring_last_refused_ticket", offsetof(RingCounters, last_refused_ticket));
  put("ring_last_refused_reason", offsetof(RingCounters, last_refused_reason));
  put("ring_masked", offsetof(RingCounters, masked));
  return out;
}

nb::dict budget_dict(uint32_t world, uint32_t ranks_per_node, uint32_t proxies, uint32_t rings,
                     uint32_t depth, uint32_t signals, uint32_t regions, uint32_t inflight,
                     uint32_t stripes) {
  const Budget at = budget_of({0, world, rings, depth, signals}, ranks_per_node, proxies, regions,
                              inflight, stripes);
  nb::dict out;
  out["links"] = at.links;
  out["queue_pairs"] = at.queue_pairs;
  out["domains"] = at.domains;
  out["mailboxes"] = at.mailboxes;
  out["registrations"] = at.registrations;
  out["pinned_bytes"] = at.pinned_bytes;
  out["queue_entries"] = at.queue_entries;
  out["segment_bytes"] = at.segment_bytes;
  out["signal_words"] = at.signal_words;
  return out;
}

uint64_t unix_ns() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

nb::bytes id_bytes(const Id128& id) {
  std::array<uint8_t, 16> out;
  for (size_t i = 0; i < 8; ++i) {
    out[i] = static_cast<uint8_t>(id.high >> (56 - 8 * i));
    out[8 + i] = static_cast<uint8_t>(id.low >> (56 - 8 * i));
  }
  return nb::bytes(out.data(), out.size());
}

Id128 uid_of(const nb::bytes& data) {
  if (data.size() == 0) return {};
  if (data.size() != 16) throw NativeError("a group's uid has 16 bytes");
  const auto* at = static_cast<const uint8_t*>(data.data());
  Id128 out;
  for (size_t i = 0; i < 8; ++i) {
    out.high = out.high << 8 | at[i];
    out.low = out.low << 8 | at[8 + i];
  }
  return out;
}

// The stamps on the clock that all agents share, as it stands to ours now.
nb::dict trail_dict(const Trail::Taken& taken) {
  const uint64_t shift = unix_ns() - platform::clock_ns();
  nb::dict out;
  nb::list barriers;
  for (const BarrierTimes& at : taken.barriers) {
    nb::dict row;
    row["trace_id"] = id_bytes(trace_id_of(at.group, at.epoch, at.number));
    row["epoch"] = at.epoch;
    row["number"] = at.number;
    row["last_rank"] = at.last_rank == kNoRank ? -1 : static_cast<int>(at.last_rank);
    row["leads"] = at.leads;
    row["alone"] = at.alone;
    row["kept"] = at.kept;
    row["began_ns"] = at.began_ns + shift;
    row["first_ns"] = at.first_ns + shift;
    row["entered_ns"] = at.entered_ns + shift;
    row["posted_ns"] = at.posted_ns + shift;
    row["network_ns"] = at.network_ns + shift;
    row["released_ns"] = at.released_ns + shift;
    row["left_ns"] = at.left_ns + shift;
    barriers.append(row);
  }
  out["position"] = taken.position;
  out["overwritten"] = taken.overwritten;
  out["barriers"] = barriers;
  return out;
}

nb::dict take_barriers(const Core& core, uint64_t group, uint64_t position, uint64_t limit,
                       bool kept) {
  const auto stats = core.barrier_stats(group);
  if (!stats) return trail_dict({position, 0, {}});
  return trail_dict((kept ? stats->kept() : stats->last_barriers()).take(position, limit));
}

void bind_session(nb::module_& module) {
  nb::class_<RegionInfo>(module, "RegionInfo")
      .def_ro("region", &RegionInfo::region)
      .def_ro("offset", &RegionInfo::offset)
      .def_ro("bytes", &RegionInfo::bytes);
  nb::class_<RemoteRank>(module, "RemoteRank")
      .def(
          "__init__",
          [](RemoteRank* self, uint32_t rank, uint32_t node, const nb::bytes& blob) {
            new (self) RemoteRank{rank, node, from_bytes(blob)};
          },
          "rank"_a, "node"_a, "blob"_a)
      .def_ro("rank", &RemoteRank::rank)
      .def_ro("node", &RemoteRank::node)
      .def_prop_ro("blob", [](const RemoteRank& self) { return to_bytes(self.blob); });
  nb::class_<Session>(module, "Session")
      .def_prop_ro("rank", [](const Session& self) { return self.shape().rank; })
      .def_prop_ro("group", &Session::group)
      .def("share",
           [](const Session& self) {
             Shared shared;
             {
               const nb::gil_scoped_release unlocked;
               shared = self.share();
             }
             return nb::make_tuple(shared.pod.release(), shared.agent.release());
           })
      .def_prop_ro("region_bytes", &Session::region_bytes, Unlocked())
      .def("register_memfd", &Session::register_memfd, "fd"_a, "bytes"_a, Unlocked())
      .def("register_dmabuf", &Session::register_dmabuf, "fd"_a, "bytes"_a, Unlocked())
      .def("describe",
           [](const Session& self) {
             std::vector<std::byte> blob;
             {
               const nb::gil_scoped_release unlocked;
               blob = encode(self.describe());
             }
             return to_bytes(blob);
           })
      .def("endpoints",
           [](const Session& self) {
             nb::list out;
             for (const auto& proxy : self.proxies()) {
               if (!proxy->address().empty()) out.append(to_bytes(proxy->address()));
             }
             return out;
           })
      .def(
          "drain", [](const Session& self, uint64_t ms) { return self.drain(ms * kMs); },
          "timeout_ms"_a, Unlocked())
      .def("move", &Session::move, "cpus"_a, Unlocked())
      .def("counters", &session_dict)
      .def(
          "close", [](Session& self, uint64_t ms) { self.close(ms * kMs); }, "timeout_ms"_a = 5000,
          Unlocked());
}

using Ports = std::vector<std::tuple<std::string, uint8_t, std::string>>;
void bind_core(nb::module_& module) {
  nb::class_<Event>(module, "Event")
      .def_ro("kind", &Event::kind)
      .def_ro("group", &Event::group)
      .def_ro("rank", &Event::rank)
      .def_ro("ranks", &Event::ranks)
      .def_ro("detail", &Event::detail)
      .def_ro("barrier", &Event::barrier);
  nb::class_<Core>(module, "Core")
      .def(
          "__init__",
          [](Core* self, const std::string& address, const std::string& provider,
             uint32_t drain_batch, uint32_t max_inflight, uint64_t max_inflight_bytes,
             const std::string& idle, int histogram_scale, uint64_t stall_ms, uint64_t connect_ms,
             const Ports& ports, bool gated, bool adaptive, uint32_t packing, bool early_pop,
             uint32_t nics_per_gpu, const std::string& qp_selection, const std::string& atomics) {
            std::vector<VerbsPort> verbs;
            for (const auto& [device, port, gid] : ports) verbs.push_back({device, port, gid});
            new (self) Core({address,
                             provider,
                             drain_batch,
                             {max_inflight, max_inflight_bytes, stall_ms * kMs},
                             idle,
                             histogram_scale,
                             connect_ms * kMs,
                             std::move(verbs),
                             adaptive,
                             packing,
                             early_pop,
                             gated,
                             nics_per_gpu,
                             qp_selection,
                             atomics});
          },
          nb::kw_only(), "address"_a, "provider"_a = "tcp;ofi_rxm", "drain_batch"_a = 32,
          "max_inflight"_a = 256, "max_inflight_bytes"_a = 64u << 20, "idle"_a = "adaptive",
          "histogram_scale"_a = 5, "stall_timeout_ms"_a = 10000, "connect_timeout_ms"_a = 10000,
          "ports"_a = Ports{}, "gated"_a = false, "adaptive"_a = false,
          "packing"_a = Joining::kMost, "early_pop"_a = true, "nics_per_gpu"_a = 1,
          "qp_selection"_a = "leastInflight", "atomics"_a = "auto", Unlocked())
      .def(
          "open_session",
          [](Core& self, uint64_t group, uint32_t rank, uint32_t world, uint32_t rings,
             uint32_t depth, uint32_t signals, const std::vector<int>& cpus, uint64_t quota,
             uint32_t inflight, const std::vector<uint32_t>& nics, uint32_t nics_used) {
            return self.open_session({group,
                                      {rank, world, rings, depth, signals},
                                      cpus,
                                      quota,
                                      inflight,
                                      nics,
                                      nics_used});
          },
          nb::kw_only(), "group"_a, "rank"_a, "world"_a, "rings"_a, "depth"_a, "signals"_a,
          "cpus"_a, "quota_bytes"_a = kMaxRankBytes, "max_inflight"_a = 0,
          "nics"_a = std::vector<uint32_t>{}, "nics_used"_a = 0, Unlocked())
      .def(
          "open_epoch",
          [](Core& self, uint64_t group, uint32_t epoch,
             const std::vector<std::shared_ptr<Session>>& local,
             const std::vector<RemoteRank>& remote, uint32_t leader,
             const std::vector<std::vector<uint32_t>>& nodes, uint64_t barrier_ms, bool mask,
             const nb::bytes& uid, bool dissemination) {
            EpochPlan plan{group, epoch, leader, barrier_ms * kMs, nodes, mask, uid_of(uid)};
            plan.dissemination = dissemination;
            const nb::gil_scoped_release unlocked;
            self.open_epoch(plan, local, remote);
          },
          "group"_a, "epoch"_a, "local"_a, "remote"_a, "leader_rank"_a, "nodes"_a,
          "barrier_timeout_ms"_a, "mask"_a = false, "uid"_a = nb::bytes("", 0),
          "dissemination"_a = false)
      .def("start_epoch", &Core::start_epoch, "group"_a, Unlocked())
      .def("fail_epoch", &Core::fail_epoch, "group"_a, "reason"_a, Unlocked())
      .def("rank_left", &Core::rank_left, "group"_a, "rank"_a, Unlocked())
      .def("mask_ranks", &Core::mask_ranks, "group"_a, "ranks"_a, Unlocked())
      .def("exclude_ranks", &Core::exclude_ranks, "group"_a, "ranks"_a, Unlocked())
      .def("absent", &Core::absent, "group"_a, "barrier"_a, Unlocked())
      .def("close_epoch", &Core::close_epoch, "group"_a, Unlocked())
      .def("failure", &Core::failure, "group"_a, Unlocked())
      .def("atomics", &Core::atomics, "group"_a, Unlocked())
      .def("events", [](Core& self) { return self.events().take(); })
      .def("event_fd", [](Core& self) { return self.events().fd(); })
      .def("port_fds", &Core::port_fds)
      .def("port_news", &Core::port_news)
      .def("nics", &nics_dict)
      .def("counters",
           [](Core& self) {
             nb::list out;
             for (const auto& session : self.sessions()) out.append(session_dict(*session));
             return out;
           })
      .def(
          "barrier_stats",
          [](Core& self, uint64_t group, bool rail) {
            const auto stats = self.barrier_stats(group);
            return barrier_dict(stats && rail ? &stats->rails() : stats.get());
          },
          "group"_a, "rail"_a = false)
      .def("take_barriers", &take_barriers, "group"_a, "position"_a, "limit"_a, "kept"_a = true)
      .def(
          "keep_barriers",
          [](Core& self, double ratio, uint64_t slow_ns) { self.keep_barriers(ratio, slow_ns); },
          nb::kw_only(), "ratio"_a, "slow_ns"_a)
      .def("forget_group", &Core::forget_group, "group"_a)
      .def("close", &Core::close, Unlocked());
}

}  // namespace

NB_MODULE(_native, module) {
  nb::exception<NativeError>(module, "NativeError", PyExc_RuntimeError);
  module.def("layout", &layout_dict, "rings"_a, "depth"_a, "signals"_a, "world"_a);
  module.def("budget", &budget_dict, nb::kw_only(), "world"_a, "ranks_per_node"_a, "proxies"_a,
             "rings"_a, "depth"_a, "signals"_a, "regions"_a, "max_inflight"_a,
             "nics_per_gpu"_a = 1);
  bind_nics(module);
  bind_session(module);
  bind_core(module);
}
