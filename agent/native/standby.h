// Which of an agent's ports a proxy uses whose links go over one at a time. Pure; used by proxy.cc
// and nic_room.cc.
#pragma once

#include <optional>

#include "stripes.h"

namespace epfabric::agent {

// The port of `ports` that stands by for a proxy whose own is `own`: the next. One is enough, and
// each costs registrations, queues and time.
inline std::optional<uint32_t> spare_of(uint32_t own, uint32_t ports) {
  if (ports < 2) return std::nullopt;
  return (own + 1) % ports;
}

}  // namespace epfabric::agent
