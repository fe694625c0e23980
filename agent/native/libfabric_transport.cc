// Links, posting and flow control of the libfabric transport.
#include "libfabric_transport.h"

#include <algorithm>

namespace epfabric::agent {
namespace {

constexpr size_t kMaxBatch = 64;

// Proxy `s` of a rank with `ps` proxies and proxy `j` of one with `pj` talk to each other where
// either sends to the other: i sends to i modulo the other's number. Symmetric, so that credits
// have a way back.
bool partners(uint32_t s, uint32_t ps, uint32_t j, uint32_t pj) {
  return s % pj == j || j % ps == s;
}

uint32_t partners_below(uint32_t s_end, uint32_t ps, uint32_t j, uint32_t pj) {
  uint32_t out = 0;
  for (uint32_t s = 0; s < s_end; ++s) out += partners(s, ps, j, pj) ? 1 : 0;
  return out;
}

uint32_t room_for_domains(uint32_t world, uint32_t proxies) {
  return std::min(kMaxDomains, world * (kMaxProxies / proxies + 1));
}

}  // namespace

LibfabricTransport::LibfabricTransport(const Fabric& fabric, uint32_t index, const Shape& shape,
                                       uint32_t proxies, const Limits& limits, ProxyCount& count)
    : index_(index),
      shape_(shape),
      own_proxies_(proxies),
      limits_(limits),
      count_(count),
      domains_(room_for_domains(shape.world, proxies)),
      endpoint_(fabric),
      mailboxes_(
          Mapping::anonymous(uint64_t{domains_} * kMailboxBytes + kScratchBytes, "mailboxes")),
      staging_(Mapping::anonymous(uint64_t{domains_} * kMailboxBytes + kScratchBytes,
                                  "records to send")),
      mailbox_key_(endpoint_.register_memory(mailboxes_.data(), mailboxes_.bytes())),
      staging_key_(endpoint_.register_memory(staging_.data(), staging_.bytes())),
      operations_(kOperations),
      completions_(kMaxBatch) {
  free_.reserve(kOperations);
  for (Operation& operation : operations_) free_.push_back(&operation);
  regions_.reserve(kMaxRegions);
}

RemoteKey LibfabricTransport::add_region(const Region& region) {
  region_keys_.push_back(endpoint_.register_memory(region.memory.data(), region.memory.bytes()));
  regions_.push_back(&region);
  return region_keys_.back().remote;
}

void LibfabricTransport::open(Epoch& epoch) {
  links_.clear();
  owing_.clear();
  to_rank_.assign(epoch.world(), nullptr);
  epoch_ = &epoch;
  for (uint32_t rank = 0; rank < epoch.world(); ++rank) {
    if (epoch.local(rank)) continue;
    const uint32_t others = epoch.proxies_of(rank);
    for (uint32_t s = 0; s < others; ++s) {
      if (partners(s, others, index_, own_proxies_))
        add_link(rank, s, static_cast<uint32_t>(links_.size()));
    }
  }
  owing_.reserve(links_.size());
}

void LibfabricTransport::add_link(uint32_t rank, uint32_t proxy, uint32_t own_domain) {
  const uint32_t their_domain = domain_at(rank, proxy);
  const uint32_t their_room = room_for_domains(shape_.world, epoch_->proxies_of(rank));
  if (own_domain >= domains_ || their_domain >= their_room) {
    throw NativeError("the group needs more than " +
                      std::to_string(std::min(domains_, their_room)) +
                      " mailboxes at one proxy: give each rank more proxies, or fewer ranks");
  }
  const ProxyBlob& blob = epoch_->remote(rank).proxies[proxy];
  auto link = std::make_unique<Link>();
  link->rank = rank;
  link->proxy = proxy;
  link->peer = endpoint_.insert(blob.address);
  link->domain = their_domain;
  link->mailbox = {blob.mailbox.key, blob.mailbox.base + uint64_t{their_domain} * kMailboxBytes};
  link->regions = &blob.regions;
  link->outbox = Outbox(
      reinterpret_cast<ControlRecord*>(staging_.data() + uint64_t{own_domain} * kMailboxBytes));
  link->inbox = Inbox(mailboxes_.data() + uint64_t{own_domain} * kMailboxBytes);
  if (proxy == index_ % epoch_->proxies_of(rank)) to_rank_[rank] = link.get();
  links_.push_back(std::move(link));
}

// The receiver's name for us: its partners are counted by rank, then by proxy.
uint32_t LibfabricTransport::domain_at(uint32_t rank, uint32_t proxy) const {
  const uint32_t theirs = epoch_->proxies_of(rank);
  uint32_t out = 0;
  for (uint32_t source = 0; source < shape_.rank; ++source) {
    if (epoch_->node_of(source) == epoch_->node_of(rank)) continue;
    const uint32_t proxies = epoch_->proxies_of(source);
    out += partners_below(proxies, proxies, proxy, theirs);
  }
  return out + partners_below(index_, own_proxies_, proxy, theirs);
}

// The probe is a write of 8 bytes to the scratch page behind the peer's mailboxes; nobody reads it.
size_t LibfabricTransport::connect() {
  size_t missing = 0;
  for (const auto& link : links_) {
    if (link->connected) continue;
    missing += 1;
    if (link->probed) continue;
    Operation* operation = take_operation(*link, Operation::Kind::kProbe, nullptr, 8);
    if (operation == nullptr) continue;
    const uint64_t room = room_for_domains(shape_.world, epoch_->proxies_of(link->rank));
    const RemoteKey& mailbox = epoch_->remote(link->rank).proxies[link->proxy].mailbox;
    const std::byte* zeros = staging_.data() + uint64_t{domains_} * kMailboxBytes;
    link->probed =
        posted(endpoint_.write({link->peer, mailbox.base + room * kMailboxBytes, mailbox.key},
                               zeros, 8, staging_key_.descriptor, operation),
               operation);
  }
  return missing;
}

std::string LibfabricTransport::unreachable() const {
  for (const auto& link : links_) {
    if (!link->connected) {
      return "rank " + std::to_string(link->rank) + " (proxy " + std::to_string(link->proxy) + ")";
    }
  }
  return "";
}

Operation* LibfabricTransport::take_operation(Link& link, Operation::Kind kind, Ring* ring,
                                              uint64_t bytes) {
  if (free_.empty()) return nullptr;
  Operation* operation = free_.back();
  free_.pop_back();
  operation->link = &link;
  operation->kind = kind;
  operation->ring = ring;
  operation->ticket = ring != nullptr ? ring->ticket() : 0;
  operation->bytes = bytes;
  if (link.inflight == 0) link.progress_ns = now_ns_;
  link.inflight += 1;
  link.inflight_bytes += bytes;
  count_.inflight.set(inflight());
  return operation;
}

void LibfabricTransport::give_back(Operation* operation) {
  abandoned_ -= operation->abandoned ? 1 : 0;
  operation->abandoned = operation->lost = false;
  operation->ring = nullptr;
  operation->link->inflight -= 1;
  operation->link->inflight_bytes -= operation->bytes;
  free_.push_back(operation);
  count_.inflight.set(inflight());
}

// Settles a post: false = busy, nothing happened. Another error is kept for watch() to report.
bool LibfabricTransport::posted(ssize_t result, Operation* operation) {
  Link& link = *operation->link;
  if (result == 0) {
    link.busy_since_ns = 0;
    return true;
  }
  if (link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
  if (result != -FI_EAGAIN && operation->kind != Operation::Kind::kCredit) {
    link.error = static_cast<int>(-result);
  }
  give_back(operation);
  return false;
}

void LibfabricTransport::abandon(uint32_t rank) {
  for (Operation& operation : operations_) {
    if (operation.ring == nullptr || operation.link->rank != rank) continue;
    operation.ring->part_masked(operation.ticket);
    operation.ring = nullptr;
    if (operation.lost) {
      give_back(&operation);
    } else {
      operation.abandoned = true;
      abandoned_ += 1;
    }
  }
  count_.inflight.set(inflight());
}

void LibfabricTransport::drop_regions() {
  region_keys_.clear();
  regions_.clear();
}

Posted LibfabricTransport::write(const WritePart& part) {
  Link& link = *to_rank_[part.rank];
  const uint64_t bytes = std::min(part.bytes, endpoint_.max_bytes());
  const bool full = link.inflight >= limits_.inflight ||
                    (link.inflight > 0 && link.inflight_bytes + bytes > limits_.inflight_bytes);
  if (full) return {};
  Operation* operation = take_operation(link, Operation::Kind::kPart, part.ring, bytes);
  if (operation == nullptr) return {};
  const Region& from = *regions_[part.source_region];
  const RemoteKey& to = (*link.regions)[part.destination_region];
  const Extent& extent = epoch_->remote(part.rank).regions[part.destination_region];
  const Endpoint::Target target{link.peer, to.base + (part.destination - extent.begin), to.key};
  const ssize_t result = endpoint_.write(target, from.at(part.source), bytes,
                                         region_keys_[part.source_region].descriptor, operation);
  if (!posted(result, operation)) return {};
  return {bytes, true};
}

Posted LibfabricTransport::signal(const SignalPart& part) {
  Link& link = *to_rank_[part.rank];
  if (link.inflight >= limits_.inflight) return {};
  ControlRecord record;
  record.kind = RecordKind::kSignal;
  record.ring = static_cast<uint8_t>(part.ring->index());
  record.index = static_cast<uint16_t>(part.index);
  record.value = part.value;
  if (!post_record(link, record, Operation::Kind::kRecord, part.ring)) return {};
  return {1, true};
}

bool LibfabricTransport::send(uint32_t rank, ControlRecord record) {
  return post_record(*to_rank_[rank], record, Operation::Kind::kRecord, nullptr);
}

void LibfabricTransport::send_credits() {
  for (size_t i = 0; i < owing_.size();) {
    Link& link = *owing_[i];
    ControlRecord record;
    record.kind = RecordKind::kCredit;
    if (link.inbox.owes_credit() && !link.broken && !epoch_->left(link.rank) &&
        !post_record(link, record, Operation::Kind::kCredit, nullptr)) {
      ++i;  // busy
      continue;
    }
    link.owes = false;
    owing_[i] = owing_.back();
    owing_.pop_back();
  }
}

bool LibfabricTransport::post_record(Link& link, ControlRecord& record, Operation::Kind kind,
                                     Ring* ring) {
  if (!link.outbox.room(record.kind != RecordKind::kSignal)) {
    if (link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
    return false;
  }
  Operation* operation = take_operation(link, kind, ring, sizeof(ControlRecord));
  if (operation == nullptr) return false;
  record.source = static_cast<uint16_t>(shape_.rank);
  record.destination = static_cast<uint16_t>(link.rank);
  record.epoch = epoch_->plan().epoch;
  record.consumed = static_cast<uint32_t>(link.inbox.total());
  const uint32_t imm = pack_imm({kImmControl, link.domain, link.outbox.sequence()});
  const Endpoint::Target target{
      link.peer, link.mailbox.base + uint64_t{link.outbox.slot()} * sizeof(ControlRecord),
      link.mailbox.key};
  const ControlRecord* staged = link.outbox.stage(record);
  const ssize_t result = endpoint_.write_with_imm(target, staged, sizeof(ControlRecord),
                                                  staging_key_.descriptor, imm, operation);
  if (!posted(result, operation)) return false;
  link.outbox.sent();
  link.inbox.credit();
  count_.records_sent.add(1);
  return true;
}

RecordView LibfabricTransport::view_of(const Link& link) const {
  return {epoch_->plan().epoch,          link.rank, shape_.rank, shape_.rings, shape_.signals,
          epoch_->proxies_of(link.rank), link.proxy};
}

}  // namespace epfabric::agent
