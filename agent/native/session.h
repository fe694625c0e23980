// One rank of one pod: its segments, regions, rings and proxies. Made by Core::open_session(),
// driven from Python through module.cc. Any thread may call, also while another one closes it.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proxy.h"

namespace epfabric::agent {

struct RegionInfo {
  uint32_t region;
  uint64_t offset;
  uint64_t bytes;
};

struct SessionSettings {
  uint64_t group = 0;
  Shape shape{};
  std::vector<int> cpus;
  uint64_t quota_bytes = kMaxRankBytes;
  uint32_t inflight = 0;  // of one proxy; 0 is what the core allows
  // Of the core's ports, by their places: the session's own order of them; none: all as they are.
  std::vector<uint32_t> nics{};
  uint32_t nics_used = 0;  // the first so many share the proxies; 0: all
};

// Before any memory is registered: whether one NIC reaches a rank with so many proxies.
AtomicsOffer offer_of(const ProxySettings& settings, size_t proxies);

class Session {
 public:
  // `shares`: of NICs, by proxy; none where there are none. The endpoints' are taken already.
  Session(const SessionSettings& settings, const ProxySettings& proxies,
          const NicShares& shares = {});
  ~Session();
  Session(const Session&) = delete;

  RegionInfo register_memfd(int fd, uint64_t bytes);
  // Memory of a GPU, for NICs that verbs drives; what ranks of this node write to it is refused.
  RegionInfo register_dmabuf(int fd, uint64_t bytes);
  SessionBlob describe() const;
  // What the pod maps; nothing that close() takes away.
  Shared share() const;
  // Whether everything that its rings posted is visible at its destinations; asks for word if not.
  bool delivered() const;
  // Waits until nothing is visible or outstanding on any ring, and all of it is delivered.
  bool drain(uint64_t timeout_ns) const;
  // The same of a masked rank, whose visible commands are taken no more.
  bool settle(uint64_t timeout_ns) const;

  // Pins each proxy that still runs to its CPU, the first ones where there are fewer CPUs. Throws
  // NativeError where one cannot be pinned; the others are all the same.
  void move(const std::vector<int>& cpus);

  void ask_stop();
  // Stops the proxies; throws NativeError where one does not end in time (its memory stays mapped
  // then). The bound is for all of them.
  void stop(uint64_t timeout_ns);
  // The other local proxies no longer write here either; unmaps everything. Idempotent. Where the
  // running epoch needs the session as its barrier's delegate, what that needs stays until the
  // epoch ends and closes it.
  void close(uint64_t timeout_ns);
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  void join_epoch(const std::shared_ptr<Epoch>& epoch);
  // Links that are not connected yet, and one of them by name.
  uint64_t unconnected() const;
  std::string unreachable() const;

  uint64_t group() const { return group_; }
  const Shape& shape() const { return segments_.shape(); }
  const Segments& segments() const { return segments_; }
  const std::vector<Region>& regions() const { return regions_; }
  const std::vector<std::unique_ptr<Proxy>>& proxies() const { return proxies_; }
  const std::vector<std::unique_ptr<Ring>>& rings() const { return rings_; }
  std::vector<Extent> extents() const;
  uint64_t region_bytes() const;
  // Where ranks are; 0 before the epoch. Counters are read at any time, so these are atomic.
  uint32_t node_of(uint32_t rank) const { return nodes_[rank].load(std::memory_order_relaxed); }
  // What moves data to ranks of other nodes.
  const char* network() const { return network_; }
  bool is_local(uint32_t rank) const { return node_of(rank) == node_of(shape().rank); }

 private:
  void require_open() const;
  uint64_t place_for(uint64_t bytes, bool host) const;
  RegionInfo add_region(Region region);
  void take_registration(uint64_t bytes) const;
  void release_peers(uint64_t timeout_ns);
  void serve_as_delegate(uint64_t timeout_ns);
  uint64_t used_bytes() const { return regions_.empty() ? 0 : regions_.back().extent.end; }

  const uint64_t group_;
  const uint64_t quota_bytes_;
  const uint64_t register_ns_;
  const char* const network_;
  const AtomicsOffer atomics_;  // but for what its devices can do
  Segments segments_;
  std::vector<Region> regions_;  // never reallocates: proxies point into it
  std::vector<std::unique_ptr<Ring>> rings_;
  std::vector<std::vector<RemoteKey>> keys_;  // by proxy, by region
  std::vector<std::unique_ptr<Proxy>> proxies_;
  std::shared_ptr<Epoch> epoch_;
  std::vector<std::atomic<uint32_t>> nodes_;  // by rank
  mutable std::mutex mutex_;  // whoever changes the session, or looks at what close() takes away
  bool half_registered_ = false;  // some proxies lack a region
  std::atomic<bool> closed_{false};
};

}  // namespace epfabric::agent
