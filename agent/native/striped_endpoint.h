// Several endpoints as one: a link's writes go over all of them, each over the line that will be
// through with it first. So no order is left between two writes, and remote_gate.h gives it back.
// A line is an endpoint of a NIC's port. Satisfies endpoint.h; instantiated by verbs_transport.h.
// striped_post.h posts and polls; striped_mend.h has what follows when a line's connection breaks.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "breaks.h"
#include "budget.h"
#include "memory.h"
#include "record.h"
#include "striped_address.h"
#include "stripes.h"
#include "wait_together.h"

namespace epfabric::agent {

template <Endpoint E>
class StripedEndpoint {
 public:
  static constexpr bool kUnordered = true;
  using Descriptors = std::array<void*, kMaxLines>;
  using Counts = std::array<uint32_t, kMaxLines>;

  // Memory registered with every line, where it begins at the same place. Its remote key says which
  // it is, counted as registered; the lines' keys for it stand in address().
  struct LocalKey {
    std::vector<typename E::LocalKey> lines;
    RemoteKey remote;
    std::unique_ptr<Descriptors> descriptors;
    void* descriptor = nullptr;  // those
  };

  // `network` has `lines`, of each of which an E is made, and a `selection`.
  template <class Network>
  explicit StripedEndpoint(const Network& network) : selection_(network.selection) {
    for (const auto& line : network.lines) lines_.emplace_back(line);
    if (lines_.empty() || lines_.size() > kMaxLines)
      throw NativeError("a striped endpoint has 1-" + std::to_string(kMaxLines) + " lines");
    reserve(kOperations);
  }
  // So many writes may be under way.
  void reserve(size_t writes);

  LocalKey register_memory(std::byte* data, uint64_t bytes);
  LocalKey register_dmabuf(int fd, std::byte* data, uint64_t bytes)
    requires Foreign<E>;
  // Names the memory that is registered by now, and no other.
  std::vector<std::byte> address() const;
  PeerIndex insert(const PeerAddress& peer);
  // One line a call: it may take a while, and others wait for the turn's end.
  void meet();
  bool met(PeerIndex index) const;
  void attend();
  const std::string& fault(PeerIndex index) const { return peers_[index].fault; }
  bool next_broken(PeerIndex& out)
    requires Mending<E>;
  bool sever(PeerIndex index)
    requires Mending<E>;
  // Lines that broke more often in a row than `tries` stay out.
  void give_up(PeerIndex index, uint32_t tries)
    requires Mending<E>;
  // On every line; it goes on over those that come to be met.
  void remake(PeerIndex index, const Told&)
    requires Mending<E>;
  // Once for each connection: afterwards it is not known of that one any more.
  bool arrived(PeerIndex index, void* context)
    requires Mending<E>;
  const std::string& broken_by(PeerIndex index) const
    requires Mending<E>
  {
    return peers_[index].broken;
  }

  uint64_t max_bytes() const;
  bool gathers() const;
  ssize_t write(PeerIndex peer, Pieces pieces, void* context) {
    return post(peers_[peer], pieces, nullptr, context);
  }
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    return post(peers_[peer], pieces, &imm, context);
  }
  ssize_t write_through(PeerIndex, const Piece&, void*) { return -EOPNOTSUPP; }
  static std::string text_of(int error) { return E::text_of(error); }
  size_t poll(Completion* out, size_t capacity);
  int wait_fd();
  // Of all together.
  uint64_t line_ns_per_kib() const
    requires Paced<E>;

 private:
  template <class Each>
  LocalKey register_by(Each&& each);  // with each line
  struct Peer {
    Stripes stripes;
    std::vector<PeerIndex> at;   // by line that both ends have
    std::vector<uint64_t> keys;  // by piece of memory, then by `lines`
    size_t lines;                // the peer's
    std::string fault{};
    std::string broken{};   // why lines are out
    bool begun = false;     // it was met once, over all lines
    bool shut = false;      // it has a fault, or has to break before more is posted
    bool severing = false;  // all lines, until they are made anew
    Told own{};             // with immediates of the peer that came by each line
    Counts acknowledged{};  // immediates to the peer that completed, by line
    Counts sent{};          // likewise to the peer, for certain
    uint32_t given_up = 0;  // lines, as bits; so are these
    uint32_t failed = 0;    // that broke while they carried, since they were made
    uint32_t alone = 0;     // that are severed by themselves, since they were out
    uint32_t ended = 0;     // whose device is gone, and that are severed
    Counts completed{}, looked{}, silent{};  // writes by line; at the last look; looks without any
    std::array<Breaks, kMaxLines> breaks{};
    uint32_t all() const { return (1u << at.size()) - 1; }
  };
  // Which immediate of a line a write that failed had; left in the caller's context.
  struct Place {
    uint32_t line = kMaxLines;  // this: none
    uint32_t number = 0;
  };
  // The context of a write under way.
  struct Flight {
    std::array<void*, 8> context{};  // first: the line's endpoint writes into it
    void* told = nullptr;            // the caller's
    Peer* peer = nullptr;            // nullptr: it is free
    uint64_t bytes = 0;
    uint32_t line = 0;
    Place place{};
  };

  ssize_t post(Peer& peer, Pieces pieces, const uint32_t* imm, void* context);
  ssize_t post(uint32_t line, Peer& peer, Pieces pieces, const uint32_t* imm, Flight* flight);
  void settle(uint32_t line, Completion& done);
  void note(uint32_t line, const Flight& flight, Completion& done)
    requires Mending<E>;
  // Once for each connection, and only if nobody here was ending it.
  void note_break(Peer& peer, uint32_t line, uint64_t bytes)
    requires Mending<E>;
  bool faulty(const Peer& peer, uint32_t line) const {
    return (peer.given_up >> line & 1) != 0 || !lines_[line].fault(peer.at[line]).empty();
  }
  std::string why_given_up(const Peer& peer) const
    requires Mending<E>;
  void broke(uint32_t line, PeerIndex index)
    requires Mending<E>;
  void remake_alone(Peer& peer)
    requires Mending<E>;
  void join(Peer& peer)
    requires Mending<E>;
  void look_for_faults()
    requires Mending<E>;
  bool look_for_silence(Peer& peer)
    requires Mending<E>;
  void end_line(Peer& peer, uint32_t line)
    requires Mending<E>;
  bool all_counted(Peer& peer, const Counts& taken)
    requires Mending<E>;
  bool gone(uint32_t line) const {
    if constexpr (Mending<E>) return lines_[line].gone();
    return false;
  }

  const Selection selection_;
  std::deque<E> lines_;
  std::vector<uint64_t> keys_;                            // by piece of memory, then by line
  std::deque<Peer> peers_;                                // never moved
  std::array<std::vector<PeerIndex>, kMaxLines> owners_;  // by line, then by its own name of a peer
  std::deque<Flight> flights_;
  std::vector<Flight*> free_;
  std::deque<Flight*> ended_;      // that never completed; to be told of
  Stripes::Bytes inflight_{};      // by line, to all peers
  std::vector<PeerIndex> broken_;  // to be told of
  uint32_t looks_ = 0;             // of attend()
  uint32_t first_ = 0;             // to be polled next
  uint32_t meeting_ = 0;           // to meet its peers next
  WaitTogether waiting_;
};

template <Endpoint E>
typename StripedEndpoint<E>::LocalKey StripedEndpoint<E>::register_memory(std::byte* data,
                                                                          uint64_t bytes) {
  return register_by([&](E& line) { return line.register_memory(data, bytes); });
}

template <Endpoint E>
typename StripedEndpoint<E>::LocalKey StripedEndpoint<E>::register_dmabuf(int fd, std::byte* data,
                                                                          uint64_t bytes)
  requires Foreign<E>
{
  return register_by([&](E& line) { return line.register_dmabuf(fd, data, bytes); });
}

template <Endpoint E>
template <class Each>
typename StripedEndpoint<E>::LocalKey StripedEndpoint<E>::register_by(Each&& each) {
  LocalKey out;
  out.descriptors = std::make_unique<Descriptors>();
  out.descriptor = out.descriptors.get();
  for (E& line : lines_) {
    out.lines.push_back(each(line));
    (*out.descriptors)[out.lines.size() - 1] = out.lines.back().descriptor;
  }
  out.remote = {keys_.size() / lines_.size(), out.lines[0].remote.base};
  for (const auto& key : out.lines) {
    if (key.remote.base != out.remote.base)
      throw NativeError("memory begins elsewhere on one NIC than on another: use one NIC a GPU");
  }
  for (const auto& key : out.lines) keys_.push_back(key.remote.key);
  return out;
}

template <Endpoint E>
std::vector<std::byte> StripedEndpoint<E>::address() const {
  StripedAddress out;
  for (const E& line : lines_) out.lines.push_back(line.address());
  out.keys = keys_;
  return encode(out);
}

// The first line goes to the peer's first one, and so on, as far as both have them.
template <Endpoint E>
PeerIndex StripedEndpoint<E>::insert(const PeerAddress& peer) {
  StripedAddress theirs = striped_address(peer.address);
  const size_t count = std::min(lines_.size(), theirs.lines.size());
  Peer added{Stripes(static_cast<uint32_t>(count), selection_),
             {},
             std::move(theirs.keys),
             theirs.lines.size()};
  for (size_t i = 0; i < count; ++i) {
    added.at.push_back(lines_[i].insert({theirs.lines[i], peer.own_domain, peer.their_domain}));
    owners_[i].resize(added.at[i] + 1);
    owners_[i][added.at[i]] = peers_.size();
  }
  peers_.push_back(std::move(added));
  return peers_.size() - 1;
}

template <Endpoint E>
void StripedEndpoint<E>::reserve(size_t writes) {
  free_.reserve(writes);
  while (flights_.size() < writes) free_.push_back(&flights_.emplace_back());
}

template <Endpoint E>
void StripedEndpoint<E>::meet() {
  lines_[meeting_].meet();
  meeting_ = meeting_ + 1 < lines_.size() ? meeting_ + 1 : 0;
  if constexpr (Mending<E>) {
    for (PeerIndex index = 0; index < peers_.size(); ++index) {
      peers_[index].begun = peers_[index].begun || met(index);
      join(peers_[index]);
    }
  }
}

// At first all lines, later those that are left.
template <Endpoint E>
bool StripedEndpoint<E>::met(PeerIndex index) const {
  const Peer& peer = peers_[index];
  if (peer.own.era > 0) return peer.stripes.up() != 0;
  for (size_t i = 0; i < peer.at.size(); ++i) {
    if (!lines_[i].met(peer.at[i])) return false;
  }
  return true;
}

template <Endpoint E>
void StripedEndpoint<E>::attend() {
  for (E& line : lines_) line.attend();
  if constexpr (Mending<E>) {
    look_for_faults();
  } else {
    for (Peer& peer : peers_) {
      for (size_t i = 0; i < peer.at.size() && peer.fault.empty(); ++i)
        peer.fault = lines_[i].fault(peer.at[i]);
      peer.shut = !peer.fault.empty();
    }
  }
}

// A stripe and a record behind it.
template <Endpoint E>
uint64_t StripedEndpoint<E>::max_bytes() const {
  uint64_t out = kStripeBytes + sizeof(ControlRecord);
  for (const E& line : lines_) out = std::min(out, line.max_bytes());
  return out;
}

template <Endpoint E>
bool StripedEndpoint<E>::gathers() const {
  return std::all_of(lines_.begin(), lines_.end(), [](const E& line) { return line.gathers(); });
}

template <Endpoint E>
int StripedEndpoint<E>::wait_fd() {
  uint32_t among = 0;
  for (uint32_t line = 0; line < lines_.size(); ++line) among |= gone(line) ? 0 : 1u << line;
  return waiting_.fd(lines_, among);
}

template <Endpoint E>
uint64_t StripedEndpoint<E>::line_ns_per_kib() const
  requires Paced<E>
{
  constexpr uint64_t kBase = uint64_t{1} << 32;
  uint64_t speed = 0;
  for (const E& line : lines_) {
    if (line.line_ns_per_kib() == 0) return 0;
    speed += kBase / line.line_ns_per_kib();
  }
  return kBase / speed;
}

}  // namespace epfabric::agent

#include "striped_mend.h"
#include "striped_post.h"
