// What a group takes of an agent and its device: connections, mailboxes, registrations, pinned
// memory. Pure. Core refuses what does not fit before it opens an epoch; remote_links.h makes room
// by the same numbers; the agent's `budget` command prints them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "blob.h"
#include "mailbox.h"
#include "segment.h"

namespace epfabric::agent {

inline constexpr uint64_t kScratchBytes = 4096;  // behind the mailboxes: what markers write to
inline constexpr uint32_t kOperations = 4096;    // at least, of one proxy: of the NIC's queue

// Proxy `s` of a rank with `ps` proxies and proxy `j` of one with `pj` talk to each other where
// either sends to the other: i sends to i modulo the other's number. Symmetric, so that credits
// have a way back.
constexpr bool partners(uint32_t s, uint32_t ps, uint32_t j, uint32_t pj) {
  return s % pj == j || j % ps == s;
}
constexpr uint32_t partners_below(uint32_t s_end, uint32_t ps, uint32_t j, uint32_t pj) {
  uint32_t out = 0;
  for (uint32_t s = 0; s < s_end; ++s) out += partners(s, ps, j, pj) ? 1 : 0;
  return out;
}

// Mailboxes that a proxy makes before it knows how many proxies other ranks have.
constexpr uint32_t room_for_domains(uint32_t world, uint32_t proxies) {
  return std::min(kMaxDomains, world * (kMaxProxies / proxies + 1));
}
// What a proxy registers for them, theirs and its own records to send.
constexpr uint64_t mailbox_bytes(uint32_t domains) {
  return 2 * (uint64_t{domains} * kMailboxBytes + kScratchBytes);
}
// Entries of a proxy's send queue.
constexpr uint32_t operations_of(uint32_t inflight) { return std::max(kOperations, 2 * inflight); }

// Where the ranks of a group are and how many proxies each has; both by rank.
class Census {
 public:
  Census(std::span<const uint32_t> node_of, std::span<const uint32_t> proxies);
  // Connections of one proxy: one for each partner on another node.
  uint64_t links(uint32_t rank, uint32_t proxy) const;
  // To those of its own node, where NICs apply atomics.
  uint64_t neighbours(uint32_t rank, uint32_t proxy) const;
  // Of all proxies of a rank, and of the proxy that has most.
  uint64_t links(uint32_t rank) const;
  uint64_t neighbours(uint32_t rank) const;
  uint64_t most_links(uint32_t rank) const;

 private:
  using Counts = std::array<uint32_t, kMaxProxies + 1>;  // ranks, by how many proxies they have
  std::span<const uint32_t> node_of_;
  std::span<const uint32_t> proxies_;
  Counts all_{};
  std::vector<Counts> nodes_;
};

// Of one session.
struct Budget {
  uint64_t links = 0;          // of all its proxies: connections
  uint64_t queue_pairs = 0;    // of those, on all NICs over which they are striped, and greetings'
  uint64_t domains = 0;        // of the proxy that has most: as many mailboxes are used there
  uint64_t mailboxes = 0;      // that one proxy has room for
  uint64_t registrations = 0;  // of all its proxies on all those NICs
  uint64_t pinned_bytes = 0;   // of all its proxies, beside the regions
  uint64_t queue_entries = 0;  // of one proxy
  uint64_t segment_bytes = 0;  // what it shares with its pod
  uint64_t signal_words = 0;   // in that
};
Budget budget_of(const Shape& shape, const Census& census, uint32_t proxies, uint32_t regions,
                 uint32_t inflight, uint32_t stripes);
// Where all ranks are alike. Throws NativeError for what no group can be.
Budget budget_of(const Shape& shape, uint32_t ranks_per_node, uint32_t proxies, uint32_t regions,
                 uint32_t inflight, uint32_t stripes = 1);

// Why the local ranks' part of a group does not fit, with the numbers; empty where it does. What
// RDMA devices have room for is nic_room.h's.
std::string over(const Census& census, std::span<const uint32_t> local,
                 std::span<const uint32_t> proxies, uint32_t regions, const DeviceLimits& limits);

}  // namespace epfabric::agent
