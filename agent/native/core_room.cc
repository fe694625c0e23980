// What of a session or a group does not fit, by what the devices and the process have.
#include "core.h"

namespace epfabric::agent {

// Before anything is connected: what does not fit is refused with the numbers.
void Core::require_room(const Epoch& epoch) const {
  if (!fabric_ && watched_.empty()) return;
  const Census census = epoch.census();
  std::vector<uint32_t> local;
  size_t regions = 0;
  NicUses more;
  for (const auto& session : epoch.sessions()) {
    local.push_back(session->shape().rank);
    regions = std::max(regions, session->regions().size());
    for (uint32_t proxy = 0; proxy < session->proxies().size(); ++proxy)
      nic_plan().add(more, proxy, link_use(epoch.links(census, local.back(), proxy)));
  }
  const std::string error =
      over(census, local, epoch.proxies_by_rank(), static_cast<uint32_t>(regions),
           fabric_ ? fabric_->limits() : DeviceLimits{});
  if (!error.empty()) throw NativeError(error);
  require_room(
      more, "the links of the group's " + std::to_string(local.size()) + " rank(s) on this node");
}

NicUses Core::endpoints_of(const SessionSettings& settings) const {
  NicUses out;
  for (uint32_t proxy = 0; proxy < settings.cpus.size(); ++proxy)
    nic_plan().add(out, proxy, endpoint_use(0));
  return out;
}

// As it is now: sessions that are opened at the same time may each be told of the same room. What
// is too much is refused before links are made.
uint64_t Core::room_for_links(const NicUses& beside) const {
  uint64_t out = DeviceLimits::kNone;
  if (beside.empty()) return out;
  const std::map<std::string, ibv_device_attr> limits = nic_limits();
  NicUses used = nic_uses();
  for (const auto& [device, taken] : beside) {
    used.at(device).add(taken);
    out = std::min(out, links_left(limits.at(device), used.at(device)));
  }
  return out;
}

void Core::require_room(const NicUses& more, const std::string& whose) const {
  if (more.empty()) return;
  const std::map<std::string, ibv_device_attr> limits = nic_limits();
  const NicUses used = nic_uses();
  for (const auto& [device, wanted] : more) {
    const std::string error = shortage(device, limits.at(device), used.at(device), wanted, whose);
    if (!error.empty()) throw NativeError(error);
  }
}

std::map<std::string, ibv_device_attr> Core::nic_limits() const {
  std::map<std::string, ibv_device_attr> out;
  for (size_t i = 0; i < watched_.size(); ++i) out[devices_[i]] = watched_[i]->attributes();
  return out;
}

NicUses Core::nic_uses() const {
  NicUses out;
  for (const std::string& device : devices_) out[device].domains += 1;  // watched_'s
  for (const auto& session : sessions()) {
    for (uint32_t proxy = 0; proxy < session->proxies().size(); ++proxy)
      nic_plan().add(out, proxy, session->use_of(proxy));
  }
  return out;
}

}  // namespace epfabric::agent
