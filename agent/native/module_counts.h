// The counters of sessions and barriers as Python's dicts; included by module.cc alone, with which
// it is all that knows Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>

#include "core.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace epfabric::agent {

inline nb::dict by_reason(const std::array<Count, static_cast<size_t>(Refusal::kCount)>& counts) {
  nb::dict out;
  for (size_t i = 1; i < counts.size(); ++i) {
    if (const uint64_t n = counts[i].get(); n != 0) out[name_of(static_cast<Refusal>(i))] = n;
  }
  return out;
}

inline nb::dict ring_dict(const Ring& ring) {
  nb::dict ops, out;
  ops["write"] = ring.count().writes.get();
  ops["signal"] = ring.count().signals.get();
  ops["drain"] = ring.count().drains.get();
  ops["barrier"] = ring.count().barriers.get();
  ops["add"] = ring.count().adds.get();
  ops["cas"] = ring.count().swaps.get();
  out["joined"] = ring.count().joined.get();
  out["masked"] = ring.count().masked.get();
  out["masked_slots"] = ring.count().masked_slots.get();
  const uint64_t retired = ring.retired();  // before taken: the depth is never negative
  const uint64_t taken = ring.taken();
  out["ring"] = ring.index();
  out["taken"] = taken;
  out["completed"] = retired;
  out["depth"] = taken - retired;
  out["ops"] = ops;
  out["refused"] = by_reason(ring.count().refused);
  out["refused_slots"] = by_reason(ring.count().refused_slots);
  return out;
}

inline nb::dict proxy_dict(const Proxy& proxy) {
  nb::dict out;
  const ProxyCount& count = proxy.count();
  out["proxy"] = proxy.index();
  out["cpu"] = proxy.cpu();
  out["turns"] = count.turns.get();
  out["sleeps"] = count.sleeps.get();
  out["blocks"] = count.blocks.get();
  out["inflight"] = count.inflight.get();
  out["records_sent"] = count.records_sent.get();
  out["records_received"] = count.records_received.get();
  out["mended"] = count.mended.get();
  out["replayed"] = count.replayed.get();
  out["moved"] = count.moved.get();
  return out;
}

inline nb::list destination_list(const Session& session) {
  nb::list out;
  for (uint32_t rank = 0; rank < session.shape().world; ++rank) {
    uint64_t writes = 0, bytes = 0, signals = 0;
    for (const auto& proxy : session.proxies()) {
      writes += proxy->destinations()[rank].writes.get();
      bytes += proxy->destinations()[rank].bytes.get();
      signals += proxy->destinations()[rank].signals.get();
    }
    if (writes + bytes + signals == 0) continue;
    nb::dict row;
    row["rank"] = rank;
    row["node"] = session.node_of(rank);
    row["transport"] = session.is_local(rank) ? "loopback" : session.network();
    row["writes"] = writes;
    row["bytes"] = bytes;
    row["signals"] = signals;
    out.append(row);
  }
  return out;
}

inline nb::dict session_dict(const Session& session) {
  nb::dict out;
  nb::list rings, proxies;
  for (const auto& ring : session.rings()) rings.append(ring_dict(*ring));
  for (const auto& proxy : session.proxies()) proxies.append(proxy_dict(*proxy));
  out["group"] = session.group();
  out["rank"] = session.shape().rank;
  out["rings"] = rings;
  out["destinations"] = destination_list(session);
  out["proxies"] = proxies;
  return out;
}

inline nb::dict barrier_dict(const BarrierStats* stats) {
  nb::dict phases, stragglers, out;
  out["phases"] = phases;
  out["stragglers"] = stragglers;
  if (stats == nullptr) return out;
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    const Histogram::Snapshot at = stats->phase(static_cast<Phase>(i)).snapshot();
    nb::dict phase;
    phase["count"] = at.count;
    phase["sum_ns"] = at.sum_ns;
    phase["min_ns"] = at.min_ns;
    phase["max_ns"] = at.max_ns;
    phase["zero_count"] = at.zero_count;
    phase["scale"] = at.scale;
    phase["offset"] = at.offset;
    phase["buckets"] = nb::cast(at.buckets);
    phases[kPhaseNames[i]] = phase;
  }
  for (uint32_t rank = 0; rank < kMaxRanks; ++rank) {
    if (const uint64_t n = stats->stragglers(rank); n != 0) stragglers[nb::int_(rank)] = n;
  }
  return out;
}

}  // namespace epfabric::agent
