// The sums behind budget.h.
#include "budget.h"

#include "error.h"
#include "nic_room.h"
#include "region.h"

namespace epfabric::agent {
namespace {

constexpr const char* kRemedy =
    ": give each rank as many proxies as the others (spec.proxies.perGPU, and nodes with enough "
    "CPUs), or make the group smaller";

std::string text(uint64_t number) { return std::to_string(number); }

}  // namespace

Census::Census(std::span<const uint32_t> node_of, std::span<const uint32_t> proxies)
    : node_of_(node_of), proxies_(proxies) {
  for (size_t rank = 0; rank < node_of.size(); ++rank) {
    if (nodes_.size() <= node_of[rank]) nodes_.resize(node_of[rank] + 1);
    nodes_[node_of[rank]][proxies[rank]] += 1;
    all_[proxies[rank]] += 1;
  }
}

uint64_t Census::links(uint32_t rank, uint32_t proxy) const {
  const Counts& here = nodes_[node_of_[rank]];
  uint64_t out = 0;
  for (uint32_t theirs = 1; theirs <= kMaxProxies; ++theirs) {
    const uint64_t remote = all_[theirs] - here[theirs];
    if (remote != 0) out += remote * partners_below(theirs, theirs, proxy, proxies_[rank]);
  }
  return out;
}

uint64_t Census::neighbours(uint32_t rank, uint32_t proxy) const {
  const Counts& here = nodes_[node_of_[rank]];
  uint64_t out = 0;
  for (uint32_t theirs = 1; theirs <= kMaxProxies; ++theirs)
    out += here[theirs] * partners_below(theirs, theirs, proxy, proxies_[rank]);
  return out;
}

uint64_t Census::links(uint32_t rank) const {
  uint64_t out = 0;
  for (uint32_t proxy = 0; proxy < proxies_[rank]; ++proxy) out += links(rank, proxy);
  return out;
}

uint64_t Census::neighbours(uint32_t rank) const {
  uint64_t out = 0;
  for (uint32_t proxy = 0; proxy < proxies_[rank]; ++proxy) out += neighbours(rank, proxy);
  return out;
}

uint64_t Census::most_links(uint32_t rank) const {
  uint64_t out = 0;
  for (uint32_t proxy = 0; proxy < proxies_[rank]; ++proxy) out = std::max(out, links(rank, proxy));
  return out;
}

Budget budget_of(const Shape& shape, const Census& census, uint32_t proxies, uint32_t regions,
                 uint32_t inflight, uint32_t stripes) {
  const Layout layout = layout_of(shape.rings, shape.depth, shape.signals, shape.world);
  Budget out;
  out.links = census.links(shape.rank);
  out.domains = census.most_links(shape.rank);
  out.mailboxes = room_for_domains(shape.world, proxies);
  NicUse use = link_use(out.links);
  for (uint32_t proxy = 0; proxy < proxies; ++proxy) use.add(endpoint_use(regions));
  out.queue_pairs = stripes * use.queue_pairs;
  out.registrations = stripes * use.registrations;
  out.pinned_bytes = proxies * mailbox_bytes(room_for_domains(shape.world, proxies));
  out.queue_entries = operations_of(inflight);
  out.segment_bytes = layout.pod_bytes + layout.agent_bytes;
  out.signal_words = uint64_t{shape.world} * shape.rings * shape.signals;
  return out;
}

Budget budget_of(const Shape& shape, uint32_t ranks_per_node, uint32_t proxies, uint32_t regions,
                 uint32_t inflight, uint32_t stripes) {
  if (!layout_valid(shape.rings, shape.depth, shape.signals, shape.world) || ranks_per_node == 0 ||
      proxies == 0 || proxies > kMaxProxies || regions > kMaxRegions || stripes == 0 ||
      stripes > kMaxLines) {
    throw NativeError(
        "a group like that cannot be: world 1-4096, proxies 1-16, rings 1-64, NICs of a GPU 1-8");
  }
  std::vector<uint32_t> node_of(shape.world);
  for (uint32_t rank = 0; rank < shape.world; ++rank) node_of[rank] = rank / ranks_per_node;
  const std::vector<uint32_t> each(shape.world, proxies);
  return budget_of(shape, Census(node_of, each), proxies, regions, inflight, stripes);
}

std::string over(const Census& census, std::span<const uint32_t> local,
                 std::span<const uint32_t> proxies, uint32_t regions, const DeviceLimits& limits) {
  const auto world = static_cast<uint32_t>(proxies.size());
  for (uint32_t rank = 0; rank < world; ++rank) {
    const uint64_t domains = census.most_links(rank);
    const uint64_t room = room_for_domains(world, proxies[rank]);
    if (domains <= room) continue;
    return "a proxy of rank " + text(rank) + " (which has " + text(proxies[rank]) + ") needs " +
           text(domains) + " mailboxes in a group of " + text(world) +
           " ranks, and there are at most " + text(room) + " at one proxy" + kRemedy;
  }
  uint64_t links = 0;
  for (const uint32_t rank : local) links += census.links(rank);
  if (links > limits.connections) {
    return "the group's " + text(local.size()) + " rank(s) on this node need " + text(links) +
           " connections to the other nodes' ranks, and there is room for " +
           text(limits.connections) + " (" + limits.of +
           "): raise that limit, use fewer proxies (spec.proxies.perGPU), or make the group "
           "smaller";
  }
  if (regions + 2 > limits.registrations) {
    return "a proxy registers " + text(regions + 2) + " pieces of memory, and its device takes " +
           text(limits.registrations) + ": register fewer and larger regions";
  }
  return "";
}

}  // namespace epfabric::agent
