// Links of a remote transport: who talks to whom, set-up, first contact. Included where one is
// instantiated.
#pragma once

#include <algorithm>

#include "remote_transport.h"

namespace epfabric::agent {
namespace detail {

inline constexpr size_t kMaxBatch = 64;

}  // namespace detail

template <Endpoint E>
template <class Network>
RemoteTransport<E>::RemoteTransport(const Network& network, uint32_t index, const Shape& shape,
                                    uint32_t proxies, const Limits& limits, ProxyCount& count)
    : index_(index),
      shape_(shape),
      own_proxies_(proxies),
      limits_(limits),
      count_(count),
      domains_(room_for_domains(shape.world, proxies)),
      endpoint_(network),
      mailboxes_(
          Mapping::anonymous(uint64_t{domains_} * kMailboxBytes + kScratchBytes, "mailboxes")),
      staging_(Mapping::anonymous(uint64_t{domains_} * kMailboxBytes + kScratchBytes,
                                  "records to send")),
      mailbox_key_(endpoint_.register_memory(mailboxes_.data(), mailboxes_.bytes())),
      staging_key_(endpoint_.register_memory(staging_.data(), staging_.bytes())),
      completions_(detail::kMaxBatch) {
  add_operations(operations_of(limits.inflight));  // no rank takes all
  regions_.reserve(kMaxRegions);
  if constexpr (HardwareAtomics<E>) {  // behind what scratch_of() names
    auto* scratch =
        reinterpret_cast<uint64_t*>(staging_.data() + uint64_t{domains_} * kMailboxBytes);
    for (uint64_t i = 1; i < kScratchBytes / 8; ++i) results_.push_back(scratch + i);
  }
}

template <Endpoint E>
RemoteKey RemoteTransport<E>::add_region(const Region& region) {
  std::byte* const data = region.memory.data();
  const uint64_t bytes = region.memory.bytes();
  if constexpr (Foreign<E>) {
    region_keys_.push_back(region.foreign()
                               ? endpoint_.register_dmabuf(region.dmabuf.get(), data, bytes)
                               : endpoint_.register_memory(data, bytes));
  } else {
    if (region.foreign()) throw NativeError("GPU memory is registered with verbs' NICs alone");
    region_keys_.push_back(endpoint_.register_memory(data, bytes));
  }
  regions_.push_back(&region);
  return region_keys_.back().remote;
}

template <Endpoint E>
void RemoteTransport<E>::open(Epoch& epoch) {
  links_.clear();
  owing_.clear();
  answering_.clear();
  mending_.clear();
  behind_.forget();
  unmarked_.forget();
  to_rank_.assign(epoch.world(), nullptr);
  epoch_ = &epoch;
  by_nic_ = epoch.atomics().by_nic;
  if constexpr (Movable<E>) {
    if (by_nic_) endpoint_.stay();  // one NIC is the one party for a word
  }
  for (uint32_t rank = 0; rank < epoch.world(); ++rank) {
    if (epoch.local(rank)) continue;
    const uint32_t others = epoch.proxies_of(rank);
    for (uint32_t s = 0; s < others; ++s) {
      if (partners(s, others, index_, own_proxies_))
        add_link(rank, s, static_cast<uint32_t>(links_.size()));
    }
  }
  mailboxed_ = links_.size();
  for (const uint32_t rank : epoch.plan().nodes[epoch.node()]) {
    const uint32_t others = epoch.proxies_of(rank);
    for (uint32_t s = 0; by_nic() && s < others; ++s) {
      if (partners(s, others, index_, own_proxies_)) add_neighbour(rank, s);
    }
  }
  owing_.reserve(links_.size());
  answering_.reserve(links_.size());
  behind_.reserve(links_.size());
  unmarked_.reserve(links_.size());
}

template <Endpoint E>
void RemoteTransport<E>::add_link(uint32_t rank, uint32_t proxy, uint32_t own_domain) {
  const uint32_t their_domain = domain_at(rank, proxy);
  const uint32_t their_room = room_for_domains(shape_.world, epoch_->proxies_of(rank));
  if (own_domain >= domains_ || their_domain >= their_room)
    throw NativeError("more mailboxes at one proxy than budget.h said");
  const ProxyBlob& blob = epoch_->blob(rank).proxies[proxy];
  auto link = std::make_unique<Link>();
  link->rank = rank;
  link->proxy = proxy;
  link->peer = endpoint_.insert({blob.address, own_domain, their_domain});
  link->domain = their_domain;
  link->mailbox = {blob.mailbox.key, blob.mailbox.base + uint64_t{their_domain} * kMailboxBytes};
  link->regions = &blob.regions;
  const uint64_t at = uint64_t{own_domain} * kMailboxBytes;
  const uint64_t first = Unordered<E> ? 0 : limits_.first_sequence;  // of records
  link->outbox = Outbox(reinterpret_cast<ControlRecord*>(staging_.data() + at), first);
  link->expected.resize(shape_.rings / epoch_->proxies_of(rank) + 1);
  link->inbox = Inbox(mailboxes_.data() + at, first);
  link->order = first;
  link->cap = limits_.inflight;
  link->cap_bytes = limits_.inflight_bytes;
  if (Paced<E> && limits_.adaptive) {
    link->pace = Pace(limits_.inflight);
    use_pace(*link);
  }
  if (Unordered<E>) {
    link->gate = std::make_unique<Gate>(limits_.first_sequence);
    link->posted = link->marked = link->delivered = limits_.first_sequence;
  }
  if (proxy == index_ % epoch_->proxies_of(rank)) to_rank_[rank] = link.get();
  links_.push_back(std::move(link));
}

// To a proxy of this node, the own one among them: for ATOMICs alone. The names are any that no
// mailbox has, and that both ends come to.
template <Endpoint E>
void RemoteTransport<E>::add_neighbour(uint32_t rank, uint32_t proxy) {
  const auto name = [](uint32_t of, uint32_t at) { return kMaxDomains + of * kMaxProxies + at; };
  const ProxyBlob& blob = epoch_->blob(rank).proxies[proxy];
  auto link = std::make_unique<Link>();
  link->rank = rank;
  link->proxy = proxy;
  link->peer = endpoint_.insert({blob.address, name(rank, proxy), name(shape_.rank, index_)});
  link->regions = &blob.regions;
  link->cap = limits_.inflight;
  link->cap_bytes = limits_.inflight_bytes;
  if (proxy == index_ % epoch_->proxies_of(rank)) to_rank_[rank] = link.get();
  links_.push_back(std::move(link));
}

// The receiver's name for us: its partners are counted by rank, then by proxy.
template <Endpoint E>
uint32_t RemoteTransport<E>::domain_at(uint32_t rank, uint32_t proxy) const {
  const uint32_t theirs = epoch_->proxies_of(rank);
  uint32_t out = 0;
  for (uint32_t source = 0; source < shape_.rank; ++source) {
    if (epoch_->node_of(source) == epoch_->node_of(rank)) continue;
    const uint32_t proxies = epoch_->proxies_of(source);
    out += partners_below(proxies, proxies, proxy, theirs);
  }
  return out + partners_below(index_, own_proxies_, proxy, theirs);
}

template <Endpoint E>
size_t RemoteTransport<E>::connect() {
  size_t missing = 0;
  endpoint_.meet();
  for (const auto& link : links_) {
    if (link->connected) continue;
    missing += 1;
    if (link->probed || !endpoint_.met(link->peer)) continue;
    Operation* operation = take_operation(*link, Operation::Kind::kProbe, nullptr, 8);
    if (operation == nullptr) continue;
    remember(operation, nullptr, false);
    const Piece probe = scratch_of(*link);
    const ssize_t result = Unordered<E> ? endpoint_.write(link->peer, {&probe, 1}, operation)
                                        : endpoint_.write_through(link->peer, probe, operation);
    link->probed = posted(result, operation);
  }
  return missing;
}

template <Endpoint E>
std::string RemoteTransport<E>::unreachable() const {
  for (size_t i = 0; i < links_.size(); ++i) {
    const Link& link = *links_[i];
    if (link.connected) continue;
    const bool own = link.rank == shape_.rank;
    return (own ? "its own memory" : "rank " + std::to_string(link.rank)) + " (proxy " +
           std::to_string(link.proxy) + ")" +
           (i < mailboxed_ ? "" : " through its node's NIC, as ATOMICs have to,");
  }
  return "";
}

}  // namespace epfabric::agent
