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
      completions_(kMaxBatch) {
  add_operations(std::max(kOperations, 2 * limits.inflight));  // no rank takes all
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
  behind_.clear();
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
  behind_.reserve(links_.size());
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

size_t LibfabricTransport::connect() {
  size_t missing = 0;
  for (const auto& link : links_) {
    if (link->connected) continue;
    missing += 1;
    if (link->probed) continue;
    Operation* operation = take_operation(*link, Operation::Kind::kProbe, nullptr, 8);
    if (operation == nullptr) continue;
    link->probed =
        posted(endpoint_.write_through(link->peer, scratch_of(*link), operation), operation);
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
  lost_ -= operation->lost ? 1 : 0;
  operation->abandoned = operation->lost = false;
  operation->ring = nullptr;
  operation->link->inflight -= 1;
  operation->link->inflight_bytes -= operation->bytes;
  operation->link = nullptr;
  free_.push_back(operation);
  count_.inflight.set(inflight());
}

// Settles a post: false = busy, nothing happened. Another error is kept for watch() to report.
bool LibfabricTransport::posted(ssize_t result, Operation* operation) {
  Link& link = *operation->link;
  if (result == 0) {
    link.busy_since_ns = 0;
    const Operation::Kind kind = operation->kind;
    if (operation->ring != nullptr && kind != Operation::Kind::kMarker) {
      link.posted += 1;
      if (!link.behind) behind_.push_back(&link);  // reserved for every link: no allocation
      link.behind = true;
    }
    return true;
  }
  if (link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
  if (result != -FI_EAGAIN && operation->kind != Operation::Kind::kCredit) {
    link.error = static_cast<int>(-result);
  }
  give_back(operation);
  return false;
}

// Off the path of commands. Operations stay where they are: the provider knows them by address.
void LibfabricTransport::add_operations(size_t count) {
  free_.reserve(operations_.size() + count);
  for (size_t i = 0; i < count; ++i) free_.push_back(&operations_.emplace_back());
}

// The provider may hold an abandoned operation for minutes: others take its place.
void LibfabricTransport::abandon(uint32_t rank) {
  const uint64_t before = abandoned_;
  for (Operation& operation : operations_) {
    if (operation.link == nullptr || operation.link->rank != rank || operation.abandoned) continue;
    if (operation.ring != nullptr && operation.kind == Operation::Kind::kMarker) {
      operation.ring->part_done(operation.ticket);  // of a DRAIN, which covers others too
    } else if (operation.ring != nullptr) {
      operation.ring->part_masked(operation.ticket);
    }
    operation.ring = nullptr;
    if (operation.lost) {
      give_back(&operation);
    } else {
      operation.abandoned = true;
      abandoned_ += 1;
    }
  }
  add_operations(abandoned_ - before);
  std::erase_if(behind_, [rank](Link* link) {
    if (link->rank != rank) return false;
    link->delivered = link->posted;
    link->behind = false;
    return true;
  });
  count_.inflight.set(inflight());
}

void LibfabricTransport::stop_trying() {
  for (const auto& link : links_) link->busy_since_ns = 0;
}

// Of ranks that left in good order after all: nobody waits for what was lost.
void LibfabricTransport::release_lost() {
  for (Operation& operation : operations_) {
    if (!operation.lost || !epoch_->left(operation.link->rank)) continue;
    operation.ring->part_done(operation.ticket);
    give_back(&operation);
  }
}

Posted LibfabricTransport::write(const WritePart& part, const SignalPart* then) {
  Link& link = *to_rank_[part.rank];
  const uint64_t most = endpoint_.max_bytes() - sizeof(ControlRecord);
  const uint64_t bytes = std::min(part.bytes, most);
  const bool full = link.inflight >= limits_.inflight || inflight() >= limits_.session_inflight ||
                    (link.inflight > 0 && link.inflight_bytes + bytes > limits_.inflight_bytes);
  if (full) return {};
  const Region& from = *regions_[part.source_region];
  const RemoteKey& to = (*link.regions)[part.destination_region];
  const Extent& extent = epoch_->remote(part.rank).regions[part.destination_region];
  const Endpoint::Piece payload{from.at(part.source), region_keys_[part.source_region].descriptor,
                                bytes, to.base + (part.destination - extent.begin), to.key};
  if (then != nullptr && bytes == part.bytes && endpoint_.gathers()) {
    ControlRecord record = record_of(*then);
    if (!post_record(link, record, Operation::Kind::kPart, part.ring, &payload)) return {};
    return {bytes, true, true};
  }
  Operation* operation = take_operation(link, Operation::Kind::kPart, part.ring, bytes);
  if (operation == nullptr) return {};
  if (!posted(endpoint_.write(link.peer, {&payload, 1}, operation), operation)) return {};
  return {bytes, true};
}

ControlRecord LibfabricTransport::record_of(const SignalPart& part) {
  ControlRecord record;
  record.kind = RecordKind::kSignal;
  record.ring = static_cast<uint8_t>(part.ring->index());
  record.index = static_cast<uint16_t>(part.index);
  record.value = part.value;
  return record;
}

Posted LibfabricTransport::signal(const SignalPart& part) {
  Link& link = *to_rank_[part.rank];
  if (link.inflight >= limits_.inflight || inflight() >= limits_.session_inflight) return {};
  ControlRecord record = record_of(part);
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

// Posts the record, behind `payload` in one operation where there is one.
bool LibfabricTransport::post_record(Link& link, ControlRecord& record, Operation::Kind kind,
                                     Ring* ring, const Endpoint::Piece* payload) {
  if (!link.outbox.room(record.kind != RecordKind::kSignal)) {
    if (link.busy_since_ns == 0) link.busy_since_ns = now_ns_;
    return false;
  }
  const uint64_t bytes = sizeof(ControlRecord) + (payload != nullptr ? payload->bytes : 0);
  Operation* operation = take_operation(link, kind, ring, bytes);
  if (operation == nullptr) return false;
  record.source = static_cast<uint16_t>(shape_.rank);
  record.destination = static_cast<uint16_t>(link.rank);
  record.epoch = epoch_->plan().epoch;
  record.consumed = static_cast<uint32_t>(link.inbox.total());
  const uint32_t imm = pack_imm({kImmControl, link.domain, link.outbox.sequence()});
  const uint64_t slot = link.mailbox.base + uint64_t{link.outbox.slot()} * sizeof(ControlRecord);
  const Endpoint::Piece staged{link.outbox.stage(record), staging_key_.descriptor,
                               sizeof(ControlRecord), slot, link.mailbox.key};
  const Endpoint::Piece pieces[] = {payload != nullptr ? *payload : staged, staged};
  const size_t count = payload != nullptr ? 2 : 1;
  const ssize_t result = endpoint_.write_with_imm(link.peer, {pieces, count}, imm, operation);
  if (!posted(result, operation)) return false;
  link.outbox.sent();
  link.inbox.credit();
  count_.records_sent.add(1);
  return true;
}

// Eight bytes that nobody reads, to the page behind the peer's mailboxes.
Endpoint::Piece LibfabricTransport::scratch_of(const Link& link) const {
  const uint64_t room = room_for_domains(shape_.world, epoch_->proxies_of(link.rank));
  const RemoteKey& mailbox = epoch_->remote(link.rank).proxies[link.proxy].mailbox;
  return {staging_.data() + uint64_t{domains_} * kMailboxBytes, staging_key_.descriptor, 8,
          mailbox.base + room * kMailboxBytes, mailbox.key};
}

// The marker completes when it, and with it everything before it, is visible at the peer.
bool LibfabricTransport::post_marker(Link& link, Ring* ring) {
  Operation* operation = take_operation(link, Operation::Kind::kMarker, ring, 8);
  if (operation == nullptr) return false;
  operation->covers = link.posted;
  if (!posted(endpoint_.write_through(link.peer, scratch_of(link), operation), operation))
    return false;
  link.marked = link.posted;
  return true;
}

bool LibfabricTransport::drain(Ring& ring, uint64_t& serial) {
  if (behind_.empty()) return true;
  if (serial == 0) serial = ++drains_;
  for (size_t i = 0; i < behind_.size();) {
    Link& link = *behind_[i];
    if (epoch_->gone(link.rank)) {
      caught_up(link);
      continue;
    }
    if (link.drain != serial) {
      if (!post_marker(link, &ring)) return false;
      ring.add_part();
      link.drain = serial;
    }
    ++i;
  }
  return true;
}

void LibfabricTransport::flush() {
  for (size_t i = 0; i < behind_.size();) {
    Link& link = *behind_[i];
    if (epoch_->gone(link.rank)) {
      caught_up(link);
      continue;
    }
    if (link.marked < link.posted) (void)post_marker(link, nullptr);
    ++i;
  }
}

// Nothing that the link posted is under way any more; whoever left takes nothing.
void LibfabricTransport::caught_up(Link& link) {
  link.delivered = link.posted;
  link.behind = false;
  std::erase(behind_, &link);
}

RecordView LibfabricTransport::view_of(const Link& link) const {
  return {epoch_->plan().epoch,          link.rank, shape_.rank, shape_.rings, shape_.signals,
          epoch_->proxies_of(link.rank), link.proxy};
}

}  // namespace epfabric::agent
