// An endpoint whose peers are not there: each write completes at the next poll, and the peers of a
// RemoteTransport answer as agents do (credits, arrivals at a barrier). It keeps what each of them
// was told. Used by peers.cc to drive one agent against a thousand ranks.
#pragma once

#include <cerrno>
#include <cstring>
#include <vector>

#include "endpoint.h"
#include "mailbox.h"

namespace epfabric::bench {

class AnsweringEndpoint;

// What an endpoint is made from.
struct AnsweringNetwork {
  uint32_t rings;
  uint32_t epoch;
  AnsweringEndpoint** made;  // where the endpoint says that it is there
};

// The simulated ranks' addresses: rank, then proxy.
inline std::vector<std::byte> answering_address(uint32_t rank, uint32_t proxy) {
  const uint32_t words[] = {rank, proxy};
  std::vector<std::byte> out(sizeof(words));
  std::memcpy(out.data(), words, sizeof(words));
  return out;
}

class AnsweringEndpoint {
 public:
  struct LocalKey {
    agent::RemoteKey remote;
    void* descriptor = nullptr;
  };
  struct Peer {
    uint32_t rank, proxy;
    uint32_t domain;  // as we know it
    uint64_t received = 0, sent = 0, told = 0;
    uint64_t bytes = 0, signals = 0, releases = 0;
    uint64_t sum = 0;             // of the words' growth
    std::vector<uint64_t> words;  // by ring: its one signal word
  };

  explicit AnsweringEndpoint(const AnsweringNetwork& network)
      : network_(network), pending_(kQueue) {
    *network.made = this;
  }
  AnsweringEndpoint(const AnsweringEndpoint&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t) {
    if (mailboxes_ == nullptr) mailboxes_ = data;  // the transport's first
    return {{1, reinterpret_cast<uint64_t>(data)}, nullptr};
  }
  std::vector<std::byte> address() const { return answering_address(0, 0); }
  agent::PeerIndex insert(const agent::PeerAddress& at) {
    uint32_t words[2];
    std::memcpy(words, at.address.data(), sizeof(words));
    Peer peer{.rank = words[0], .proxy = words[1], .domain = at.own_domain, .words = {}};
    peer.words.resize(network_.rings);
    peers_.push_back(std::move(peer));
    return peers_.size() - 1;
  }
  void meet() {}
  void attend() {}
  const std::string& fault(agent::PeerIndex) const { return no_fault_; }
  bool met(agent::PeerIndex) const { return true; }
  uint64_t max_bytes() const { return 1u << 20; }
  bool gathers() const { return true; }
  int wait_fd() { return agent::kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }

  ssize_t write(agent::PeerIndex to, agent::Pieces pieces, void* context) {
    if (!complete(context)) return -EAGAIN;
    peers_[to].bytes += pieces[0].bytes;
    return 0;
  }
  ssize_t write_with_imm(agent::PeerIndex to, agent::Pieces pieces, uint32_t, void* context) {
    if (!complete(context)) return -EAGAIN;
    Peer& peer = peers_[to];
    agent::ControlRecord record;
    std::memcpy(&record, pieces.back().data, sizeof(record));
    if (pieces.size() == 2) peer.bytes += pieces[0].bytes;
    peer.received += 1;
    take(peer, record);
    if (peer.received - peer.told >= agent::kMailboxSlots / 2)
      say(peer, agent::RecordKind::kCredit, 0, 0);
    return 0;
  }
  ssize_t write_through(agent::PeerIndex, const agent::Piece&, void* context) {
    markers_ += 1;
    return complete(context) ? 0 : -EAGAIN;
  }
  size_t poll(agent::Completion* out, size_t capacity) {
    size_t got = 0;
    for (; got < capacity && first_ != last_; ++got) out[got] = pending_[first_++ % kQueue];
    polled_ += got;
    return got;
  }

  // The first proxies of these ranks, which are their nodes' delegates, arrive at barrier `number`.
  void arrive(uint64_t number, const std::vector<uint32_t>& ranks) {
    size_t at = 0;  // peers and ranks are in order
    for (Peer& peer : peers_) {
      if (at == ranks.size() || peer.proxy != 0 || peer.rank != ranks[at]) continue;
      say(peer, agent::RecordKind::kArrive, number, agent::pack_arrival({peer.rank, 0}));
      at += 1;
    }
  }
  const std::vector<Peer>& peers() const { return peers_; }
  uint64_t polled() const { return polled_; }
  uint64_t markers() const { return markers_; }
  bool right() const { return right_; }

 private:
  static constexpr uint64_t kQueue = 8192;  // as the provider's

  bool complete(void* context) {
    if (last_ - first_ >= kQueue / 2) return false;  // the other half is for what peers say
    pending_[last_++ % kQueue] = {.context = context, .detail = {}};
    return true;
  }

  void take(Peer& peer, const agent::ControlRecord& record) {
    right_ = right_ && record.destination == peer.rank;
    if (record.kind == agent::RecordKind::kRelease) peer.releases += 1;
    if (record.kind != agent::RecordKind::kSignal) return;
    uint64_t& word = peer.words[record.ring];
    right_ = right_ && record.value > word;
    peer.sum += record.value - word;
    word = record.value;
    peer.signals += 1;
  }

  void say(Peer& peer, agent::RecordKind kind, uint64_t value, uint64_t extra) {
    agent::ControlRecord record;
    record.kind = kind;
    record.source = static_cast<uint16_t>(peer.rank);
    record.epoch = network_.epoch;
    record.consumed = static_cast<uint32_t>(peer.received);
    record.value = value;
    record.extra = extra;
    const uint64_t slot = peer.sent & (agent::kMailboxSlots - 1);
    std::memcpy(mailboxes_ + uint64_t{peer.domain} * agent::kMailboxBytes + slot * sizeof(record),
                &record, sizeof(record));
    const uint32_t imm =
        agent::pack_imm({agent::kImmControl, peer.domain, static_cast<uint16_t>(peer.sent)});
    peer.sent += 1;
    peer.told = peer.received;
    pending_[last_++ % kQueue] = {.record = true, .imm = imm, .detail = {}};
  }

  const AnsweringNetwork network_;
  std::byte* mailboxes_ = nullptr;
  std::vector<Peer> peers_;
  std::vector<agent::Completion> pending_;
  uint64_t first_ = 0, last_ = 0;
  uint64_t polled_ = 0, markers_ = 0;
  bool right_ = true;
  const std::string no_fault_{};
};
static_assert(agent::Endpoint<AnsweringEndpoint>);

}  // namespace epfabric::bench
