// Which of an agent's ports a proxy uses whose links go over one at a time. Pure; used by proxy.cc
// and nic_room.cc.
#pragma once

#include "stripes.h"

namespace epfabric::agent {

// Of `ports`: proxy `proxy`'s own first, then those that stand by.
inline std::vector<uint32_t> standby_of(uint32_t proxy, uint32_t ports) {
  std::vector<uint32_t> out(std::min(ports, kMaxLines));
  for (uint32_t i = 0; i < out.size(); ++i) out[i] = (proxy + i) % ports;
  return out;
}

}  // namespace epfabric::agent
