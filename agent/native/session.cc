// A session's life: open, register, join an epoch, drain, close.
#include "session.h"

#include <algorithm>
#include <chrono>

#include "deadline.h"
#include "pin.h"

namespace epfabric::agent {
namespace {

constexpr uint64_t kRegisterNs = 5'000'000'000;  // a proxy has, for a region and a NIC

template <class Done>
bool wait_until(uint64_t timeout_ns, Done&& done) {
  const uint64_t begin = platform::clock_ns();
  while (!done()) {
    if (platform::clock_ns() - begin > timeout_ns) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

uint64_t align_region(uint64_t offset) { return round_up(offset, kRegionAlign); }

}  // namespace

AtomicsOffer offer_of(const ProxySettings& settings, size_t proxies) {
  AtomicsOffer out{settings.atomics, AtomicsAbility::kAble, settings.connections};
  if (settings.ports.empty()) out.ability = AtomicsAbility::kNoVerbs;
  const bool striped = settings.stripes > 1;
  if (striped && settings.ports.size() == 1) out.ability = AtomicsAbility::kStriped;
  // Links go over to the other NICs, but where these apply ATOMICs because they have to.
  const bool all = striped || settings.atomics != AtomicsWish::kHardware;
  const size_t used = all ? settings.ports.size() : std::min<size_t>(settings.spread(), proxies);
  for (size_t i = 1; i < used; ++i) {
    if (striped || settings.ports[i].device != settings.ports.front().device)
      out.ability = AtomicsAbility::kSeveralNics;
  }
  return out;
}

Session::Session(const SessionSettings& settings, const ProxySettings& proxies,
                 const NicShares& shares)
    : group_(settings.group),
      quota_bytes_(settings.quota_bytes),
      register_ns_(kRegisterNs *
                   std::max<size_t>(
                       1, std::min<size_t>(proxies.ports.size(), std::max(2u, proxies.stripes)))),
      network_(proxies.network()),
      atomics_(offer_of(proxies, settings.cpus.size())),
      segments_(made_near(settings.cpus.empty() ? kAnyCpu : settings.cpus[0],
                          [&] { return Segments(settings.shape); })),
      keys_(settings.cpus.size()),
      nodes_(settings.shape.world) {
  const auto count = static_cast<uint32_t>(settings.cpus.size());
  if (count == 0 || count > kMaxProxies || count > settings.shape.rings) {
    throw NativeError("a session has 1-" + std::to_string(kMaxProxies) +
                      " proxies and at most one per ring, not " + std::to_string(count));
  }
  regions_.reserve(kMaxRegions);
  for (uint32_t r = 0; r < settings.shape.rings; ++r) {
    rings_.push_back(std::make_unique<Ring>(r, segments_.slots(r), segments_.counters(r),
                                            segments_.results(r), settings.shape.depth));
  }
  ProxySettings own = proxies;
  for (uint32_t i = 0; i < count; ++i) {
    if (i < shares.size()) own.share = shares[i];
    proxies_.push_back(
        std::make_unique<Proxy>(i, count, settings.cpus[i], own, segments_, regions_, rings_));
  }
}

Session::~Session() { ask_stop(); }

void Session::require_open() const {
  if (closed_)
    throw NativeError("the session of rank " + std::to_string(shape().rank) + " is closed");
  if (half_registered_) {
    throw NativeError("a registration of rank " + std::to_string(shape().rank) +
                      " failed half-way: close the session and open a new session");
  }
}

std::vector<Extent> Session::extents() const {
  const std::lock_guard lock(mutex_);
  require_open();
  std::vector<Extent> out;
  for (const Region& region : regions_) out.push_back(region.extent);
  return out;
}

uint64_t Session::region_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes();
}

RegionInfo Session::register_memfd(int fd, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const uint64_t offset = place_for(bytes, true);
  return add_region(map_region(fd, bytes, offset));
}

RegionInfo Session::register_dmabuf(int fd, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (network_ != std::string_view("verbs")) {
    throw NativeError("GPU memory is for NICs that verbs drives, and data moves by " +
                      std::string(network_ == std::string_view("none") ? "no network" : network_) +
                      " here: register host memory");
  }
  const uint64_t offset = place_for(bytes, false);
  return add_region(keep_dmabuf(fd, bytes, offset));
}

// Where one more region of so many bytes begins; `host`: they count in the quota. Throws
// NativeError.
uint64_t Session::place_for(uint64_t bytes, bool host) const {
  require_open();
  if (epoch_) throw NativeError("regions are registered before the group's epoch opens");
  if (regions_.size() == kMaxRegions) {
    throw NativeError("a rank has at most " + std::to_string(kMaxRegions) +
                      " regions: use larger ones");
  }
  const uint64_t offset = align_region(used_bytes());
  uint64_t used = 0;
  for (const Region& region : regions_) used += region.foreign() ? 0 : region.memory.bytes();
  if (host && (bytes > quota_bytes_ || used + bytes > quota_bytes_)) {
    throw NativeError("the region of " + std::to_string(bytes) +
                      " bytes is over the session's quota of " + std::to_string(quota_bytes_) +
                      " bytes (" + std::to_string(used) +
                      " in use): register less, or ask for a larger spec.memory");
  }
  if (offset > kMaxRankBytes || bytes > kMaxRankBytes - offset) {
    throw NativeError("a rank's regions end below 64 GiB: register less");
  }
  return offset;
}

RegionInfo Session::add_region(Region region) {
  const Extent extent = region.extent;
  take_registration(extent.end - extent.begin);
  regions_.push_back(std::move(region));
  half_registered_ = true;
  for (const auto& proxy : proxies_) {
    Request request;
    request.kind = Request::Kind::kAddRegion;
    request.region = &regions_.back();
    proxy->run(request, register_ns_);
    keys_[proxy->index()].push_back(request.key);
  }
  half_registered_ = false;
  return {static_cast<uint32_t>(regions_.size() - 1), extent.begin, extent.end - extent.begin};
}

void Session::take_registration(uint64_t bytes) const {
  constexpr NicUse kRegion{.registrations = 1};
  std::vector<NicShare::Wish> wishes;
  for (const auto& proxy : proxies_) {
    if (proxy->share() != nullptr) wishes.push_back({proxy->share(), kRegion});
  }
  NicShare::take(wishes, "the proxies of rank " + std::to_string(shape().rank) +
                             " for a region of " + std::to_string(bytes) + " bytes");
}

Shared Session::share() const {
  const std::lock_guard lock(mutex_);
  require_open();
  return segments_.share();
}

SessionBlob Session::describe() const {
  const std::lock_guard lock(mutex_);
  require_open();
  SessionBlob blob;
  blob.rank = shape().rank;
  blob.world = shape().world;
  blob.rings = shape().rings;
  blob.signals = shape().signals;
  blob.atomics = atomics_;
  for (const auto& proxy : proxies_) {
    if (blob.atomics.ability == AtomicsAbility::kAble) blob.atomics.ability = proxy->ability();
  }
  for (const Region& region : regions_) {
    if (region.foreign()) blob.foreign |= 1u << blob.regions.size();
    blob.regions.push_back(region.extent);
  }
  for (const auto& proxy : proxies_) {
    blob.proxies.push_back({proxy->address(), proxy->mailbox(), keys_[proxy->index()]});
  }
  return blob;
}

// A proxy's word covers all that was posted before its ring was seen idle.
bool Session::delivered() const {
  bool all = true;
  for (const auto& proxy : proxies_) {
    if (proxy->undelivered() == 0) continue;
    proxy->ask_delivery();
    all = false;
  }
  return all;
}

bool Session::drain(uint64_t timeout_ns) const {
  return wait_until(timeout_ns, [this] {
    const std::lock_guard lock(mutex_);
    require_open();
    return std::all_of(rings_.begin(), rings_.end(), [](const auto& r) { return r->idle(); }) &&
           delivered();
  });
}

bool Session::settle(uint64_t timeout_ns) const {
  return wait_until(timeout_ns, [this] {
    return std::all_of(rings_.begin(), rings_.end(),
                       [](const auto& ring) { return ring->taken() == ring->retired(); }) &&
           delivered();
  });
}

void Session::join_epoch(const std::shared_ptr<Epoch>& epoch) {
  const std::lock_guard lock(mutex_);
  require_open();
  if (epoch_) throw NativeError("a session takes part in one epoch only: open a new session");
  epoch_ = epoch;
  epoch->reach(this);
  for (uint32_t rank = 0; rank < epoch->world(); ++rank) {
    nodes_[rank].store(epoch->node_of(rank), std::memory_order_relaxed);
  }
  platform::store_release(&segments_.header()->epoch, epoch->plan().epoch);
  for (const auto& proxy : proxies_) {
    Request request;
    request.kind = Request::Kind::kOpenEpoch;
    request.epoch = epoch;
    proxy->run(request);
  }
}

uint64_t Session::unconnected() const {
  uint64_t out = 0;
  for (const auto& proxy : proxies_) {
    if (proxy->unconnected() == Proxy::kUnknown) return Proxy::kUnknown;
    out += proxy->unconnected();
  }
  return out;
}

std::string Session::unreachable() const {
  for (const auto& proxy : proxies_) {
    if (proxy->unconnected() != 0) return proxy->unreachable();
  }
  return "";
}

void Session::move(const std::vector<int>& cpus) {
  Attempts attempts;
  for (size_t i = 0; i < std::min(cpus.size(), proxies_.size()); ++i)
    attempts.make([&] { proxies_[i]->move(cpus[i]); });
  attempts.check();
}

void Session::ask_stop() {
  for (const auto& proxy : proxies_) proxy->ask_stop();
}

void Session::stop(uint64_t timeout_ns) {
  ask_stop();
  const Deadline limit(timeout_ns);
  for (const auto& proxy : proxies_) {
    if (!proxy->join(limit.left_ns())) {
      throw NativeError("proxy " + std::to_string(proxy->index()) + " of rank " +
                        std::to_string(shape().rank) +
                        " did not end in time: the machine is overloaded");
    }
  }
}

// Local peers may be in the middle of a copy into this session's regions.
void Session::release_peers(uint64_t timeout_ns) {
  for (const Proxy* proxy : epoch_->proxies()) {
    if (!proxy->pass(timeout_ns))
      throw NativeError("a local proxy did not let go of the session in time");
  }
}

// Of a masked rank whose proxy 0 is the node's delegate: that, the segments and the regions stay. A
// peer's late write to a region that is gone would end the connection that carries the barrier.
void Session::serve_as_delegate(uint64_t timeout_ns) {
  for (size_t i = 1; i < proxies_.size(); ++i) proxies_[i]->ask_stop();
  for (size_t i = 1; i < proxies_.size(); ++i) {
    if (!proxies_[i]->join(timeout_ns)) throw NativeError("a masked rank's proxy did not end");
  }
}

void Session::close(uint64_t timeout_ns) {
  const std::lock_guard lock(mutex_);
  if (closed()) return;
  if (epoch_ && epoch_->needs(shape().rank)) return serve_as_delegate(timeout_ns);
  const Deadline limit(timeout_ns);
  if (epoch_) epoch_->leave(shape().rank);
  stop(limit.left_ns());
  if (epoch_) {
    release_peers(limit.left_ns());
    epoch_->forget(this);
  }
  closed_.store(true, std::memory_order_release);
  regions_.clear();
  segments_.close();
  epoch_.reset();
}

}  // namespace epfabric::agent
