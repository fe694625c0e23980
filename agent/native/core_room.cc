// What a session or a group takes of devices and the process: had before anything of it is made, or
// refused with the numbers.
#include <algorithm>
#include <numeric>

#include "core.h"

namespace epfabric::agent {

void Core::watch_ports() {
  NicLimits limits;
  NicUses used;
  for (const VerbsPort& port : proxy_settings_.ports) {
    watched_.push_back(std::make_unique<VerbsDevice>(port));
    limits[port.device] = watched_.back()->attributes();
    used[port.device].domains += 1;
  }
  nics_ = std::make_shared<NicLedger>(std::move(limits), std::move(used));
}

// Of its NICs, in its own order, among the core's.
std::vector<uint32_t> Core::places_of(const SessionSettings& settings) const {
  const size_t all = settings_.ports.size();
  std::vector<uint32_t> out = settings.nics;
  if (out.empty()) {
    out.resize(all);
    std::iota(out.begin(), out.end(), 0u);
  }
  std::vector<uint32_t> sorted = out;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end() ||
      (!sorted.empty() && sorted.back() >= all) || settings.nics_used > out.size()) {
    throw NativeError("a session's NICs are " + std::to_string(all) +
                      " of the core at most, each once, and it uses no more than it has");
  }
  return out;
}

ProxySettings Core::settings_of(const SessionSettings& settings) const {
  ProxySettings out = proxy_settings_;
  if (settings_.ports.empty()) return out;  // tcp, or no network: there is nothing to choose
  const auto pick = [&](auto& all) {
    auto one = all;
    one.clear();
    for (const uint32_t place : places_of(settings)) one.push_back(all[place]);
    all = one;
  };
  out.used = settings.nics_used;
  if (out.ports.empty())
    pick(out.fabrics);
  else
    pick(out.ports);
  return out;
}

NicShares Core::take_endpoints(const SessionSettings& settings,
                               const ProxySettings& proxies) const {
  std::vector<std::string> devices;
  for (const VerbsPort& port : proxies.ports) devices.push_back(port.device);
  const NicPlan plan{devices, settings_.stripes, proxies.used};
  NicShares out;
  std::vector<NicShare::Wish> wishes;
  for (uint32_t proxy = 0; proxy < settings.cpus.size(); ++proxy) {
    out.push_back(std::make_shared<NicShare>(nics_, plan.devices_of(proxy)));
    wishes.push_back({out.back().get(), endpoint_use(0)});
  }
  NicShare::take(wishes, "the endpoints of rank " + std::to_string(settings.shape.rank));
  if (links_may_stay(settings, proxies)) return out;
  for (uint32_t proxy = 0; proxy < out.size(); ++proxy) {
    if (const auto spare = plan.spare_of(proxy))
      out[proxy]->take_spare(*spare, endpoint_use(uint32_t{kMaxRegions}));
  }
  return out;
}

// As they do where NICs apply ATOMICs: because they have to, or because all are one that can.
bool Core::links_may_stay(const SessionSettings& settings, const ProxySettings& proxies) const {
  const AtomicsOffer offer = offer_of(proxies, settings.cpus.size());
  if (offer.wish != AtomicsWish::kAuto) return offer.wish == AtomicsWish::kHardware;
  return offer.ability == AtomicsAbility::kAble &&
         watched_[places_of(settings).front()]->ability() == AtomicsAbility::kAble;
}

// They are given back with their proxies, which end with the epoch.
void Core::take_links(const Epoch& epoch) const {
  if (fabrics_.empty() && watched_.empty()) return;
  const Census census = epoch.census();
  std::vector<uint32_t> local;
  size_t regions = 0;
  std::vector<NicShare::Wish> wishes;
  for (const auto& session : epoch.sessions()) {
    local.push_back(session->shape().rank);
    regions = std::max(regions, session->regions().size());
    for (const auto& proxy : session->proxies()) {
      const uint64_t links = epoch.links(census, local.back(), proxy->index());
      wishes.push_back({proxy->share(), link_use(links)});
    }
  }
  const std::string error =
      over(census, local, epoch.proxies_by_rank(), static_cast<uint32_t>(regions),
           fabrics_.empty() ? DeviceLimits{} : fabrics_.front().limits());
  if (!error.empty()) throw NativeError(error);
  NicShare::take(
      wishes, "the links of the group's " + std::to_string(local.size()) + " rank(s) on this node");
}

}  // namespace epfabric::agent
