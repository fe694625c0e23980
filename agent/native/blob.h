// What a session tells the other nodes so that they can write to its rank: endpoints, mailboxes,
// regions and keys. Travels inside the agents' Join and Open messages as opaque bytes. Checked when
// decoded: it comes from another machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "atomics_choice.h"
#include "check.h"
#include "endpoint.h"

namespace epfabric::agent {

inline constexpr uint32_t kMaxProxies = 16;

struct ProxyBlob {
  std::vector<std::byte> address;
  RemoteKey mailbox;
  std::vector<RemoteKey> regions;  // as many as the session's
};

struct SessionBlob {
  uint32_t rank = 0;
  uint32_t world = 0;
  uint32_t rings = 0;
  uint32_t signals = 0;
  std::vector<Extent> regions;
  std::vector<ProxyBlob> proxies;
  AtomicsOffer atomics{};
  uint32_t foreign = 0;  // regions that no CPU may touch, as bits
};

std::vector<std::byte> encode(const SessionBlob& blob);
// Throws NativeError for bytes that no agent of this version makes.
SessionBlob decode(std::span<const std::byte> bytes);

}  // namespace epfabric::agent
