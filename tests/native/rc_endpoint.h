// A network within one process whose connections keep order, and break: what is under way is then
// done at the peer or not, packets of an old connection still arrive, and each end learns of it in
// a time of its own. Its NICs apply atomics, one at a time but in two steps, so that a CPU that
// changes the word too is seen. Connections are made by the greetings of verbs_greeting.h, some of
// which get lost. What a connection brought and nobody polled goes with it when it is destroyed, as
// with some drivers. One seed decides all; used by one thread at a time. Used by rc_network.h.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>

#include "endpoint.h"
#include "rc_rules.h"
#include "verbs_greeting.h"

namespace epfabric::test {

using agent::Completion;
using agent::PeerAddress;
using agent::PeerIndex;
using agent::Piece;
using agent::Pieces;
using agent::RemoteKey;

class RcEndpoint {
 public:
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit RcEndpoint(std::reference_wrapper<RcNetwork> network)
      : network_(network), name_(network_.endpoints_.size()) {
    network_.endpoints_.push_back(this);
  }
  RcEndpoint(const RcEndpoint&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t bytes) {
    memory_.push_back({data, bytes});
    return {{memory_.size() - 1, 0}};
  }
  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress& peer) {
    ends_.push_back({std::to_integer<size_t>(peer.address[0]), peer.own_domain, peer.their_domain});
    ends_.back().own.taken[0] = network_.rules.first_taken;
    return ends_.size() - 1;
  }
  void meet() {
    for (End& end : ends_) {
      if (end.alive && !end.link.met() && !network_.rules.still) greet(end);
    }
  }
  bool met(PeerIndex peer) const { return ends_[peer].alive && ends_[peer].link.met(); }
  void attend() {}
  const std::string& fault(PeerIndex peer) const { return ends_[peer].fault; }
  uint64_t max_bytes() const { return network_.rules.max_bytes; }
  bool gathers() const { return true; }
  ssize_t write(PeerIndex peer, Pieces pieces, void* context) {
    return post(peer, pieces, nullptr, context);
  }
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    return post(peer, pieces, &imm, context);
  }
  ssize_t write_through(PeerIndex peer, const Piece& piece, void* context) {
    return post(peer, {&piece, 1}, nullptr, context);
  }
  agent::AtomicsAbility ability() const { return agent::AtomicsAbility::kAble; }
  ssize_t fetch_add(PeerIndex peer, const Piece& word, uint64_t operand, void* context) {
    return post(peer, {&word, 1}, nullptr, context, Change{false, operand, 0, 0});
  }
  ssize_t compare_swap(PeerIndex peer, const Piece& word, uint64_t operand, uint64_t swap,
                       void* context) {
    return post(peer, {&word, 1}, nullptr, context, Change{true, operand, swap, 0});
  }
  size_t poll(Completion* out, size_t capacity) {
    network_.step();
    network_.most_work_ = std::max(network_.most_work_, work_);
    work_ = 0;
    if (failed_ && !readable_) {
      lose_device();
      out[0] = {nullptr, false, 0, EIO, "it cannot be polled"};
      return 1;
    }
    size_t got = 0;
    while (got < std::min(capacity, network_.rules.polled) && !completions_.empty()) {
      const Queued queued = completions_.front();
      completions_.pop_front();
      if (queued.last) ends_[queued.end].drained = true;
      if (!queued.last) out[got++] = queued.completion;
    }
    if (got == 0 && network_.rules.busy) out[got++] = {};
    return got;
  }
  int wait_fd() { return agent::kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }

  bool next_broken(PeerIndex& out) {
    if (broken_.empty()) return false;
    out = broken_.back();
    broken_.pop_back();
    return true;
  }
  bool sever(PeerIndex peer) {
    End& end = ends_[peer];
    if (!end.ending) {
      work_ += 1;
      fail(end);
      flush(end, agent::kBroken);
      end.ending = true;
      for (auto& [stores, flight] : end.incoming) {
        if (network_.changing_ == &flight) change(flight);
      }
      end.incoming.clear();  // of the peer's old connection
      if (!failed_) completions_.push_back({{}, peer, true});
    }
    if (failed_ && ++severs_ == kSilentSevers) lose_device();
    const auto of_it = [&](const Queued& queued) { return queued.end == peer; };
    if (gone_ && (!readable_ || std::none_of(completions_.begin(), completions_.end(), of_it)))
      end.drained = true;
    if (!end.drained) return false;
    destroy(end);
    return true;
  }
  void remake(PeerIndex peer, const agent::Told& told) {
    End& end = ends_[peer];
    work_ += 1;
    destroy(end);
    end.link = again(end.link, told.era);
    end.own = told;
    end.alive = true;
    end.resting = false;
    end.failed = end.ending = end.drained = false;
  }
  void kill(PeerIndex peer, const std::string& why) {
    End& end = ends_[peer];
    if (!end.fault.empty()) return;
    end.fault = why;
    flush(end, EIO);
  }
  void rest(PeerIndex peer) {
    destroy(ends_[peer]);
    ends_[peer].resting = true;
    std::erase(broken_, peer);
  }
  uint32_t heard(PeerIndex peer) const { return ends_[peer].heard; }
  bool gone() const { return gone_; }
  std::string name() const { return "endpoint " + std::to_string(name_); }
  const agent::Told& told(PeerIndex peer) const { return ends_[peer].theirs; }
  const std::string& broken_by(PeerIndex) const { return why_; }

 private:
  friend class RcNetwork;
  struct Memory {
    std::byte* data;
    uint64_t bytes;
  };
  struct Store {
    std::byte* target;
    std::vector<std::byte> bytes;
  };
  struct Change {
    bool cas;
    uint64_t operand, swap, old;
  };
  struct Flight {
    std::vector<Piece> pieces;
    uint64_t generation;
    void* context;
    uint32_t imm;
    bool has_imm, done;
    std::optional<Change> change;
    uint64_t bytes() const {
      uint64_t out = 0;
      for (const Piece& piece : pieces) out += piece.bytes;
      return out;
    }
  };
  struct Queued {
    Completion completion;
    size_t end;         // whose queue pair's it is
    bool last = false;  // nothing of that one is behind it
  };
  // Of a connection; its flights are on their way to the peer.
  struct End {
    size_t peer;
    uint32_t own_domain, their_domain;
    agent::Acquaintance link{};
    bool alive = true, failed = false, ending = false, drained = false, resting = false;
    uint32_t heard = 0;  // of the peer's eras, the latest
    std::string fault{};
    agent::Told own{}, theirs{};
    std::deque<Flight> flights{};
    // What came of the peer's connection after it had broken there: it may be done while this end
    // has not severed.
    std::deque<std::pair<std::vector<Store>, Flight>> incoming{};
  };

  ssize_t post(PeerIndex peer, Pieces pieces, const uint32_t* imm, void* context,
               std::optional<Change> change = {}) {
    End& end = ends_[peer];
    if (!end.fault.empty()) return -ENOTCONN;
    if (!met(peer) || end.failed || end.flights.size() >= network_.rules.queue) return -EAGAIN;
    if (network_.one_in(network_.rules.refuse_one_in)) return -EAGAIN;
    network_.posted_ += 1;
    end.flights.push_back({{pieces.begin(), pieces.end()},
                           end.link.generation,
                           context,
                           imm != nullptr ? *imm : 0,
                           imm != nullptr,
                           false,
                           change});
    return 0;
  }

  End* other_end(const End& end) {
    for (End& other : network_.endpoints_[end.peer]->ends_) {
      if (other.peer == name_ && other.own_domain == end.their_domain) return &other;
    }
    return nullptr;
  }

  void greet(End& end) {
    End* other = other_end(end);
    if (other == nullptr || failed_ || network_.misses()) return;
    agent::Greeting greeting;
    greeting.generation = end.link.generation;
    greeting.seen = end.link.seen;
    greeting.acknowledged = end.link.acknowledged;
    greeting.era = end.link.era;
    greeting.taken = end.own.taken;
    network_.endpoints_[end.peer]->hear_from(*other, greeting);
  }
  void hear_from(End& end, const agent::Greeting& greeting) {
    if (end.resting && end.fault.empty() && greeting.era > end.heard)
      broken_.push_back(index_of(end));
    end.heard = std::max(end.heard, greeting.era);
    if (!end.alive || end.failed || failed_ || !end.fault.empty()) return;
    const agent::Answer answer = hear(end.link, greeting);
    if (answer == agent::Answer::kConflict) {
      end.theirs.era = greeting.era;
      disturb(end);
    }
    if (answer == agent::Answer::kConnect) {
      end.link.seen = greeting.generation;
      end.theirs = {greeting.era, greeting.taken};
    }
    if (answer == agent::Answer::kConnect || answer == agent::Answer::kRepeat) greet(end);
  }

  // The NIC's failure is known. What its queue pairs held never completes.
  void lose_device() {
    gone_ = true;
    for (End& end : ends_) {
      if (end.fault.empty()) end.fault = "its NIC failed";
    }
  }

  size_t index_of(const End& end) const { return static_cast<size_t>(&end - &ends_[0]); }

  void destroy(End& end) {
    end.alive = false;
    std::erase_if(completions_, [&](const Queued& queued) { return queued.end == index_of(end); });
  }

  // The connection breaks at this end; what is under way fails when it is severed, or now.
  void disturb(End& end) {
    if (end.failed || !end.alive || !end.fault.empty()) return;
    end.failed = true;
    end.link.acknowledged = 0;
    network_.breaks_ += 1;
    broken_.push_back(index_of(end));
  }
  void fail(End& end) {
    if (end.failed || !end.alive || !end.fault.empty()) return;
    disturb(end);
    flush(end, agent::kBroken);
  }

  // All that is under way fails. Some of it is still in the network and arrives later, with the
  // bytes that it was sent with.
  void flush(End& end, int error) {
    RcEndpoint& to = *network_.endpoints_[end.peer];
    End* other = other_end(end);
    size_t under_way = end.flights.empty() ? 0 : network_.random_() % (end.flights.size() + 1);
    for (Flight& flight : end.flights) {
      if (network_.changing_ == &flight) to.change(flight);
      network_.done_unanswered_ += flight.done ? 1 : 0;
      if (!flight.done && under_way > 0 && other != nullptr && other->alive && !other->ending &&
          other->link.seen == flight.generation) {
        under_way -= 1;
        other->incoming.emplace_back(to.stores_of(flight), flight);
      }
      const std::string& why = end.fault.empty() ? why_ : end.fault;
      if (!failed_) completions_.push_back({{flight.context, false, 0, error, why}, index_of(end)});
    }
    end.flights.clear();
  }

  Store read(const Piece& piece) {
    const auto key = static_cast<uint32_t>(piece.key);
    if (key >= memory_.size() || piece.address + piece.bytes > memory_[key].bytes) {
      std::fprintf(stderr, "rc: a write outside of registered memory\n");
      std::abort();
    }
    const auto* data = static_cast<const std::byte*>(piece.data);
    return {memory_[key].data + piece.address, {data, data + piece.bytes}};
  }
  std::vector<Store> stores_of(const Flight& flight) {
    std::vector<Store> out;
    for (const Piece& piece : flight.pieces) {
      if (!flight.change) out.push_back(read(piece));
    }
    return out;
  }
  // By this end's NIC: reads the word, then stores it; others wait meanwhile.
  void change(Flight& flight) {
    const Piece& piece = flight.pieces[0];
    std::byte* word = memory_[static_cast<uint32_t>(piece.key)].data + piece.address;
    if (network_.changing_ == nullptr) {
      network_.changing_ = &flight;
      std::memcpy(&network_.old_, word, 8);
    } else if (network_.changing_ == &flight) {
      Change& change = *flight.change;
      change.old = network_.old_;
      const uint64_t sum = change.old + change.operand;
      const uint64_t* now = change.cas ? &change.swap : &sum;
      if (!change.cas || change.old == change.operand) std::memcpy(word, now, 8);
      network_.changing_ = nullptr;
      flight.done = true;
    }
  }
  void receive(const End& end, const std::vector<Store>& stores, const Flight& flight) {
    for (const Store& store : stores)
      std::memcpy(store.target, store.bytes.data(), store.bytes.size());
    if (flight.has_imm) completions_.push_back({{nullptr, true, flight.imm, 0, ""}, index_of(end)});
  }

  inline void step(End& end);

  RcNetwork& network_;
  const size_t name_;
  const std::string why_ = "it broke";
  std::vector<Memory> memory_;
  std::deque<Queued> completions_;
  std::vector<PeerIndex> broken_;
  std::vector<End> ends_;
  uint64_t work_ = 0;  // since the last poll
  // Its NIC takes and completes nothing any more; its queue can be polled; this is known.
  bool failed_ = false, readable_ = true, gone_ = false;
  static constexpr uint32_t kSilentSevers = 50;
  uint32_t severs_ = 0;  // since it failed
};
static_assert(agent::Resting<RcEndpoint> && agent::HardwareAtomics<RcEndpoint>);

}  // namespace epfabric::test
