// An endpoint whose peers are the fuzzer: it says what arrives, and what becomes of what is posted.
// Used by arrivals.cc. Writes go nowhere.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "endpoint.h"
#include "mailbox.h"

namespace epfabric::agent {

// What becomes of posts.
enum class Mood : uint8_t { kTakes, kBusy, kFails, kRefuses };

class HostileEndpoint {
 public:
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };
  struct Peer {
    uint64_t records = 0;    // that it wrote
    uint64_t sequences = 0;  // that it used, on an endpoint without order
    uint64_t received = 0;   // that it may acknowledge
    ControlRecord asked{};   // the last ATOMIC
  };
  static constexpr uint64_t kPostedAtOnce = 4096;

  explicit HostileEndpoint(HostileEndpoint** made) { *made = this; }
  HostileEndpoint(const HostileEndpoint&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t) {
    if (mailboxes_ == nullptr) mailboxes_ = data;  // the transport's first
    return {};
  }
  std::vector<std::byte> address() const { return {}; }
  PeerIndex insert(const PeerAddress&) {
    peers.emplace_back();
    return peers.size() - 1;  // its domain here
  }
  void meet() {}
  void attend() {}
  bool met(PeerIndex) const { return true; }
  const std::string& fault(PeerIndex) const { return no_fault_; }
  uint64_t max_bytes() const { return 4096; }
  bool gathers() const { return true; }
  int wait_fd() { return kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }

  ssize_t write(PeerIndex, Pieces, void* context) { return post(context); }
  ssize_t write_through(PeerIndex, const Piece&, void* context) { return post(context); }
  ssize_t write_with_imm(PeerIndex to, Pieces pieces, uint32_t data, void* context) {
    const ssize_t result = post(context);
    const Imm imm = unpack_imm(data);
    if (result != 0 || imm.type == kImmCredit) return result;
    peers[to].received += 1;
    if (imm.type != kImmControl) return 0;
    ControlRecord record;
    std::memcpy(&record, pieces.back().data, sizeof(record));
    if (record.kind == RecordKind::kAdd || record.kind == RecordKind::kSwap)
      peers[to].asked = record;
    return 0;
  }
  size_t poll(Completion* out, size_t capacity) {
    size_t got = 0;
    for (; got < capacity && !pending_.empty(); ++got) {
      out[got] = std::move(pending_.front());
      pending_.pop_front();
    }
    return got;
  }

  // `domain` writes a record and announces it, as `imm`.
  void say(uint32_t domain, const ControlRecord& record, uint32_t imm) {
    std::byte* mailbox = mailboxes_ + uint64_t{domain} * kMailboxBytes;
    const uint64_t slot = peers[domain].records & (kMailboxSlots - 1);
    std::memcpy(mailbox + slot * sizeof(record), &record, sizeof(record));
    announce(imm);
  }
  void announce(uint64_t imm) { pending_.push_back({.record = true, .imm = imm, .detail = {}}); }
  bool quiet() const { return pending_.empty(); }

  Mood mood = Mood::kTakes;
  std::vector<Peer> peers;  // by domain

 private:
  ssize_t post(void* context) {
    if (mood == Mood::kBusy || pending_.size() >= kPostedAtOnce) return -EAGAIN;
    if (mood == Mood::kRefuses) return -EINVAL;
    pending_.push_back({.context = context, .error = mood == Mood::kFails ? EIO : 0, .detail = {}});
    return 0;
  }

  std::byte* mailboxes_ = nullptr;
  std::deque<Completion> pending_;
  const std::string no_fault_{};
};
static_assert(Endpoint<HostileEndpoint>);

class UnorderedHostileEndpoint : public HostileEndpoint {
 public:
  static constexpr bool kUnordered = true;
  using HostileEndpoint::HostileEndpoint;
};
static_assert(Unordered<UnorderedHostileEndpoint>);

}  // namespace epfabric::agent
