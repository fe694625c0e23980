// Encoding and checked decoding of a session's blob (little endian, as every machine meant here).
#include "blob.h"

#include <epfabric/layout.h>

#include <cstring>

#include "record.h"
#include "region.h"

namespace epfabric::agent {
namespace {

constexpr uint32_t kMagic = 0x20425045;  // "EPB "
constexpr uint32_t kMaxAddressBytes = 4096;

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), raw, raw + sizeof(T));
  }
  std::vector<std::byte> out;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  uint32_t count(uint32_t low, uint32_t high, const char* what) {
    const auto value = get<uint32_t>();
    if (value < low || value > high) {
      throw NativeError(std::string("a peer's session description has ") + std::to_string(value) +
                        " " + what);
    }
    return value;
  }
  std::span<const std::byte> take(size_t bytes) {
    if (bytes > bytes_.size()) throw NativeError("a peer's session description is cut short");
    const auto out = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return out;
  }
  bool done() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

std::vector<std::byte> encode(const SessionBlob& blob) {
  Writer to;
  for (const uint32_t value :
       {kMagic, kRecordVersion, blob.rank, blob.world, blob.rings, blob.signals,
        static_cast<uint32_t>(blob.atomics.wish), static_cast<uint32_t>(blob.atomics.ability),
        static_cast<uint32_t>(blob.regions.size()), static_cast<uint32_t>(blob.proxies.size())}) {
    to.put(value);
  }
  to.put(blob.atomics.connections);
  to.put(blob.foreign);
  for (const Extent& region : blob.regions) to.put(region);
  for (const ProxyBlob& proxy : blob.proxies) {
    to.put(static_cast<uint32_t>(proxy.address.size()));
    to.out.insert(to.out.end(), proxy.address.begin(), proxy.address.end());
    to.put(proxy.mailbox);
    for (const RemoteKey& key : proxy.regions) to.put(key);
  }
  return std::move(to.out);
}

SessionBlob decode(std::span<const std::byte> bytes) {
  Reader from(bytes);
  if (from.get<uint32_t>() != kMagic) {
    throw NativeError("a peer's session description is none");
  }
  if (const auto version = from.get<uint32_t>(); version != kRecordVersion) {
    throw NativeError("a peer's agent writes records of version " + std::to_string(version) +
                      ", this one of version " + std::to_string(kRecordVersion) +
                      ": the group can form when the nodes' agents are updated or set back");
  }
  SessionBlob out;
  out.rank = from.count(0, kMaxRanks - 1, "as its rank");
  out.world = from.count(out.rank + 1, kMaxRanks, "ranks");
  out.rings = from.count(1, kMaxRings, "rings");
  out.signals = from.count(1, kMaxSignals, "signals");
  out.atomics.wish =
      static_cast<AtomicsWish>(from.count(0, kWishes - 1, "as its wish for atomics"));
  out.atomics.ability =
      static_cast<AtomicsAbility>(from.count(0, kAbilities - 1, "as its ability for atomics"));
  const uint32_t regions = from.count(0, kMaxRegions, "regions");
  const uint32_t proxies = from.count(1, kMaxProxies, "proxies");
  out.atomics.connections = from.get<uint64_t>();
  out.foreign = from.count(0, (1u << regions) - 1, "as regions that no CPU may touch");
  uint64_t end = 0;
  for (uint32_t i = 0; i < regions; ++i) {
    const auto extent = from.get<Extent>();
    if (extent.begin < end || extent.begin % kRegionAlign != 0 || extent.end <= extent.begin ||
        extent.end > kMaxRankBytes) {
      throw NativeError("a peer's session description has a region out of place");
    }
    end = extent.end;
    out.regions.push_back(extent);
  }
  for (uint32_t i = 0; i < proxies; ++i) {
    ProxyBlob proxy;
    const auto address = from.take(from.count(0, kMaxAddressBytes, "bytes in an address"));
    proxy.address.assign(address.begin(), address.end());
    proxy.mailbox = from.get<RemoteKey>();
    for (uint32_t r = 0; r < regions; ++r) proxy.regions.push_back(from.get<RemoteKey>());
    out.proxies.push_back(std::move(proxy));
  }
  if (!from.done()) throw NativeError("a peer's session description has bytes left over");
  return out;
}

}  // namespace epfabric::agent
