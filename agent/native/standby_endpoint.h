// Several endpoints as one, of which a link uses one at a time: that of its proxy's own NIC, and
// when that is of no use any more another one, which has stood by. So a link's writes keep their
// order. A line is a pair of NICs, one of each end. Satisfies endpoint.h; instantiated by
// verbs_transport.h. standby_lines.h has what follows when a connection breaks.
#pragma once

#include <array>
#include <deque>
#include <string>
#include <vector>

#include "memory.h"
#include "striped_address.h"
#include "wait_together.h"

namespace epfabric::agent {

template <Resting E>
class StandbyEndpoint {
 public:
  // Memory registered with every NIC, where it begins at the same place. `remote` and `descriptor`
  // are those of the own NIC, which looks at their low halves; in the high ones stands which memory
  // it is, counted as registered. The other NICs' keys stand in address().
  struct LocalKey {
    std::vector<typename E::LocalKey> lines;
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  // `network` has `lines`, of each of which an E is made, and `patience`: calls of meet() that a
  // connection is waited for before another line is tried.
  template <class Network>
  explicit StandbyEndpoint(const Network& network);

  LocalKey register_memory(std::byte* data, uint64_t bytes);
  LocalKey register_dmabuf(int fd, std::byte* data, uint64_t bytes)
    requires Foreign<E>;
  std::vector<std::byte> address() const;
  // From now on links have one line, and stay on it.
  void stay() { stays_ = true; }
  PeerIndex insert(const PeerAddress& peer);
  void meet();
  bool met(PeerIndex index) const { return ways_[index].on->met(ways_[index].at); }
  void attend();
  const std::string& fault(PeerIndex index) const { return peers_[index].fault; }
  uint64_t max_bytes() const;
  bool gathers() const;

  ssize_t write(PeerIndex index, Pieces pieces, void* context) {
    const Way& way = ways_[index];
    if (way.line == 0) [[likely]]
      return result_of(index, way.on->write(way.at, pieces, context));
    return elsewhere(index, pieces,
                     [&](Pieces over) { return way.on->write(way.at, over, context); });
  }
  ssize_t write_with_imm(PeerIndex index, Pieces pieces, uint32_t imm, void* context) {
    const Way& way = ways_[index];
    if (way.line == 0) [[likely]]
      return result_of(index, way.on->write_with_imm(way.at, pieces, imm, context));
    return elsewhere(index, pieces, [&](Pieces over) {
      return way.on->write_with_imm(way.at, over, imm, context);
    });
  }
  ssize_t write_through(PeerIndex index, const Piece& piece, void* context) {
    const Way& way = ways_[index];
    if (way.line == 0) [[likely]]
      return result_of(index, way.on->write_through(way.at, piece, context));
    return elsewhere(index, {&piece, 1},
                     [&](Pieces over) { return way.on->write_through(way.at, over[0], context); });
  }
  // By the own NIC, on links that stay.
  AtomicsAbility ability() const { return own_.front().ability(); }
  ssize_t fetch_add(PeerIndex index, const Piece& word, uint64_t operand, void* context) {
    return own_.front().fetch_add(ways_[index].at, word, operand, context);
  }
  ssize_t compare_swap(PeerIndex index, const Piece& word, uint64_t operand, uint64_t swap,
                       void* context) {
    return own_.front().compare_swap(ways_[index].at, word, operand, swap, context);
  }
  static std::string text_of(int error) { return E::text_of(error); }
  size_t poll(Completion* out, size_t capacity) {
    return used_ == 1 ? own_.front().poll(out, capacity) : poll_all(out, capacity);
  }
  // How many completions poll() may tell of until it has come to what lies in any queue now, where
  // so many of links and operations may.
  uint64_t most_waiting(uint64_t of_links) const {
    return own_.size() == 1 ? of_links : (of_links + kUntold) * own_.size();
  }
  int wait_fd();

  bool next_broken(PeerIndex& out);
  bool sever(PeerIndex index);
  void remake(PeerIndex index, const Told& told);
  const Told& told(PeerIndex index) const { return ways_[index].on->told(ways_[index].at); }
  const std::string& broken_by(PeerIndex index) const {
    const Peer& peer = peers_[index];
    return peer.lines.size() == 1 ? ways_[index].on->broken_by(ways_[index].at) : peer.broken;
  }
  // Lines that were not given up.
  uint32_t lines(PeerIndex index) const;
  // The present line carries nothing: the next remake() goes over another one.
  void leave(PeerIndex index);
  std::string settled(PeerIndex index);

 private:
  template <class Each>
  LocalKey register_by(Each&& each);        // with each line
  static constexpr uint64_t kUntold = 512;  // completions that a poll handles and tells nobody of

  struct Line {
    uint32_t own, their;  // NICs
    PeerIndex at;         // the own one's name of the peer
  };
  struct Peer {
    std::vector<Line> lines;
    std::vector<uint64_t> keys;  // by piece of memory, then by the peer's NIC
    size_t nics = 0;             // the peer's
    uint32_t era = 0;            // of the connection: which line it goes over is this modulo lines
    uint32_t looks = 0;          // calls of meet() since the connection is looked for
    bool meeting = false;        // it is
    bool leaving = false;        // the next one goes over another line
    uint32_t known = 0;          // the line that it was whole on last
    std::string fault, broken;   // `broken`: why it is not whole
  };
  // What a post needs to know.
  struct Way {
    E* on;
    PeerIndex at;
    uint32_t line;
  };
  struct Owner {
    PeerIndex peer;
    uint32_t line;
  };

  // 0 and -EAGAIN as they are.
  ssize_t result_of(PeerIndex index, ssize_t result) const {
    return result == 0 || result == -EAGAIN ? result : refused(index, result);
  }
  ssize_t refused(PeerIndex index, ssize_t result) const;
  template <class Post>
  ssize_t elsewhere(PeerIndex index, Pieces pieces, Post&& post) const;
  size_t poll_all(Completion* out, size_t capacity);
  bool faulty(const Peer& peer, uint32_t line) const {
    const Line& at = peer.lines[line];
    return !own_[at.own].fault(at.at).empty();
  }
  uint32_t next_era(const Peer& peer) const;
  void go_over(PeerIndex index, uint32_t line);
  void disturb(PeerIndex index, const std::string& why);

  const uint32_t patience_;
  std::deque<E> own_;                                 // by NIC, the proxy's own first
  std::array<std::vector<Owner>, kMaxLines> owners_;  // by NIC, then by its own name of a peer
  std::array<uint32_t, kMaxLines> users_{};           // links that go over each NIC
  uint32_t used_ = 1;                                 // NICs that have some, as bits
  std::vector<uint64_t> keys_;                        // by piece of memory, then by NIC
  std::vector<void*> descriptors_;                    // likewise
  std::vector<Peer> peers_;
  std::vector<Way> ways_;          // by peer
  std::vector<PeerIndex> broken_;  // to be told of
  uint32_t first_ = 0;             // to be polled next
  bool stays_ = false;
  WaitTogether waiting_;
};

namespace detail {

inline uint64_t low_half(uint64_t value) {
  if (value >> 32 != 0) throw NativeError("a NIC's key has more than 32 bits");
  return value;
}

}  // namespace detail

// One that stands by is left out where it cannot be used now, and so are those behind it: lines are
// pairs by place.
template <Resting E>
template <class Network>
StandbyEndpoint<E>::StandbyEndpoint(const Network& network) : patience_(network.patience) {
  for (const auto& line : network.lines) {
    try {
      if (own_.size() < kMaxLines) own_.emplace_back(line);
    } catch (const NativeError&) {
      if (own_.empty()) throw;
      break;
    }
  }
  if (own_.empty()) throw NativeError("an endpoint needs a NIC");
}

template <Resting E>
typename StandbyEndpoint<E>::LocalKey StandbyEndpoint<E>::register_memory(std::byte* data,
                                                                          uint64_t bytes) {
  return register_by([&](E& line) { return line.register_memory(data, bytes); });
}

template <Resting E>
typename StandbyEndpoint<E>::LocalKey StandbyEndpoint<E>::register_dmabuf(int fd, std::byte* data,
                                                                          uint64_t bytes)
  requires Foreign<E>
{
  return register_by([&](E& line) { return line.register_dmabuf(fd, data, bytes); });
}

template <Resting E>
template <class Each>
typename StandbyEndpoint<E>::LocalKey StandbyEndpoint<E>::register_by(Each&& each) {
  LocalKey out;
  const uint64_t number = (keys_.size() / own_.size()) << 32;
  for (E& line : own_) {
    out.lines.push_back(each(line));
    if (out.lines.back().remote.base != out.lines.front().remote.base)
      throw NativeError("memory begins elsewhere on one NIC than on another: choose one NIC");
  }
  for (const auto& key : out.lines) {
    keys_.push_back(key.remote.key);
    descriptors_.push_back(key.descriptor);
  }
  const auto& first = out.lines.front();
  out.remote = {detail::low_half(first.remote.key) | number, first.remote.base};
  const auto descriptor = reinterpret_cast<uint64_t>(first.descriptor);
  detail::low_half(descriptor & ~kForeign);
  out.descriptor = reinterpret_cast<void*>(descriptor | number);
  return out;
}

template <Resting E>
std::vector<std::byte> StandbyEndpoint<E>::address() const {
  StripedAddress out;
  for (const E& line : own_) out.lines.push_back(line.address());
  out.keys = keys_;
  return encode(out, LinesUse::kInTurn);
}

// Both ends come to the same lines: each NIC of the end that has more goes to one of the other's.
template <Resting E>
PeerIndex StandbyEndpoint<E>::insert(const PeerAddress& peer) {
  StripedAddress theirs = striped_address(peer.address, LinesUse::kInTurn);
  const PeerIndex index = peers_.size();
  Peer added;
  added.nics = theirs.lines.size();
  added.keys = std::move(theirs.keys);
  const size_t count = stays_ ? 1 : std::max(own_.size(), added.nics);
  for (uint32_t i = 0; i < count; ++i) {
    const auto own = static_cast<uint32_t>(i % own_.size());
    const auto their = static_cast<uint32_t>(i % added.nics);
    const PeerIndex at =
        own_[own].insert({theirs.lines[their], peer.own_domain, peer.their_domain});
    if (i > 0) own_[own].rest(at);
    added.lines.push_back({own, their, at});
    owners_[own].resize(at + 1);
    owners_[own][at] = {index, i};
  }
  ways_.push_back({&own_[0], added.lines[0].at, 0});
  peers_.push_back(std::move(added));
  users_[0] += 1;
  return index;
}

template <Resting E>
uint64_t StandbyEndpoint<E>::max_bytes() const {
  uint64_t out = own_[0].max_bytes();
  for (const E& line : own_) out = std::min(out, line.max_bytes());
  return out;
}

template <Resting E>
bool StandbyEndpoint<E>::gathers() const {
  return std::all_of(own_.begin(), own_.end(), [](const E& line) { return line.gathers(); });
}

// What a line that was given up refuses another one may take.
template <Resting E>
ssize_t StandbyEndpoint<E>::refused(PeerIndex index, ssize_t result) const {
  return faulty(peers_[index], ways_[index].line) && lines(index) > 0 ? -EAGAIN : result;
}

// With the keys of the NICs that the link goes over.
template <Resting E>
template <class Post>
ssize_t StandbyEndpoint<E>::elsewhere(PeerIndex index, Pieces pieces, Post&& post) const {
  const Peer& peer = peers_[index];
  const Line& line = peer.lines[ways_[index].line];
  std::array<Piece, kMaxPieces> out;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint64_t there = (pieces[i].key >> 32) * peer.nics + line.their;
    const uint64_t here = (reinterpret_cast<uint64_t>(pieces[i].descriptor) & ~kForeign) >> 32;
    if (there >= peer.keys.size()) return -EINVAL;
    out[i] = pieces[i];
    out[i].key = peer.keys[there];
    out[i].descriptor = descriptors_[here * own_.size() + line.own];
  }
  return result_of(index, post({out.data(), pieces.size()}));
}

// An equal share of each, so that none waits for those that always have something.
template <Resting E>
size_t StandbyEndpoint<E>::poll_all(Completion* out, size_t capacity) {
  const auto count = static_cast<uint32_t>(own_.size());
  const size_t share = std::max<size_t>(capacity / count, 1);
  size_t got = 0;
  first_ = (first_ + 1) % count;
  for (uint32_t i = 0; i < count && got < capacity; ++i) {
    const uint32_t nic = (first_ + i) % count;
    if ((used_ >> nic & 1) != 0) got += own_[nic].poll(out + got, std::min(share, capacity - got));
  }
  return got;
}

template <Resting E>
int StandbyEndpoint<E>::wait_fd() {
  return used_ == 1 ? own_.front().wait_fd() : waiting_.fd(own_, used_);
}

}  // namespace epfabric::agent

#include "standby_lines.h"
