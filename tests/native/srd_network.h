// A network within one process that behaves like EFA's SRD, for tests of endpoints without order:
// what is posted is read, stored, announced and completed at times of their own, so that everything
// overtakes everything; 4 bytes of immediate data, no inject, one piece a write, progress by poll()
// only, a bounded queue, EAGAIN at random; immediates come twice and writes get lost as the rules
// say. One seed decides all. Used by one thread at a time.
#pragma once

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <vector>

#include "endpoint.h"

namespace epfabric::test {

using agent::Completion;
using agent::PeerAddress;
using agent::PeerIndex;
using agent::Piece;
using agent::Pieces;
using agent::RemoteKey;

struct SrdRules {
  uint32_t delay = 60;          // steps between two stages of a write, at most
  uint32_t refuse_one_in = 16;  // posts; 0 = none, as below
  uint32_t repeat_one_in = 40;  // immediates
  uint32_t drop_one_in = 0;     // writes: they complete with an error
  size_t queue = 96;            // writes of one endpoint under way
  uint64_t max_bytes = 2048;
};

class SrdEndpoint;

class SrdNetwork {
 public:
  SrdNetwork(uint64_t seed, const SrdRules& rules) : rules(rules), random_(seed) {}

  void at(uint64_t) {}              // it counts steps instead
  void stop() { stopped_ = true; }  // nothing moves any more: memory goes

  SrdRules rules;
  uint64_t posted() const { return posted_; }
  uint64_t repeated() const { return repeated_; }
  uint64_t overtaken() const { return overtaken_; }

 private:
  friend class SrdEndpoint;
  static constexpr uint32_t kHorizon = 512;  // steps that lie ahead

  enum class Stage : uint8_t { kRead, kStore, kAnnounce, kComplete };
  struct Event {
    uint32_t flight;
    Stage stage;
  };
  struct Flight {
    SrdEndpoint *from, *to;
    const void* source;
    std::byte* target;
    std::vector<std::byte> bytes;
    uint64_t number;
    void* context;
    uint32_t imm;
    uint32_t stages;  // still to come
    bool has_imm, lost;
  };

  bool one_in(uint32_t n) { return n != 0 && random_() % n == 0; }
  uint32_t delay() { return 1 + static_cast<uint32_t>(random_() % rules.delay); }
  void at(uint32_t steps, uint32_t flight, Stage stage) {
    flights_[flight].stages += 1;
    events_[(now_ + steps) % kHorizon].push_back({flight, stage});
  }
  inline void post(SrdEndpoint& from, SrdEndpoint& to, const Piece& piece, const uint32_t* imm,
                   void* context);
  inline void step();
  inline void run(const Event& event);

  std::minstd_rand random_;
  std::array<std::vector<Event>, kHorizon> events_;
  std::deque<Flight> flights_;
  std::vector<uint32_t> free_;
  std::vector<SrdEndpoint*> endpoints_;
  uint64_t now_ = 0;
  uint64_t posted_ = 0, repeated_ = 0, overtaken_ = 0;
  uint64_t last_announced_ = 0;
  bool stopped_ = false;
};

class SrdEndpoint {
 public:
  static constexpr bool kUnordered = true;
  uint64_t line_ns_per_kib() const { return 0; }
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit SrdEndpoint(std::reference_wrapper<SrdNetwork> network)
      : network_(network), name_(network_.endpoints_.size()) {
    network_.endpoints_.push_back(this);
  }
  SrdEndpoint(const SrdEndpoint&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t bytes) {
    memory_.push_back({data, bytes});
    return {{memory_.size() - 1, 0}};
  }
  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress& peer) { return std::to_integer<size_t>(peer.address[0]); }
  void meet() {}
  void attend() {}
  bool met(PeerIndex) const { return true; }
  uint64_t max_bytes() const { return network_.rules.max_bytes; }
  bool gathers() const { return false; }
  ssize_t write(PeerIndex peer, Pieces pieces, void* context) {
    return post(peer, pieces, nullptr, context);
  }
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    return post(peer, pieces, &imm, context);
  }
  ssize_t write_through(PeerIndex, const Piece&, void*) { return -EOPNOTSUPP; }
  size_t poll(Completion* out, size_t capacity) {
    network_.step();
    size_t got = 0;
    for (; got < capacity && !completions_.empty(); ++got) {
      out[got] = completions_.front();
      completions_.pop_front();
    }
    return got;
  }
  int wait_fd() { return agent::kNoWaitFd; }
  const std::string& fault(PeerIndex) const { return no_fault_; }
  static std::string text_of(int error) { return std::strerror(error); }

 private:
  friend class SrdNetwork;
  struct Memory {
    std::byte* data;
    uint64_t bytes;
  };

  ssize_t post(PeerIndex peer, Pieces pieces, const uint32_t* imm, void* context) {
    if (pieces.size() != 1) return -EINVAL;
    if (pieces[0].bytes > max_bytes()) return -EMSGSIZE;
    if (under_way_ >= network_.rules.queue || network_.one_in(network_.rules.refuse_one_in))
      return -EAGAIN;
    network_.post(*this, *network_.endpoints_[peer], pieces[0], imm, context);
    return 0;
  }

  const std::string no_fault_;
  SrdNetwork& network_;
  const size_t name_;
  std::vector<Memory> memory_;
  std::deque<Completion> completions_;
  size_t under_way_ = 0;
};
static_assert(agent::Unordered<SrdEndpoint>);

void SrdNetwork::post(SrdEndpoint& from, SrdEndpoint& to, const Piece& piece, const uint32_t* imm,
                      void* context) {
  if (piece.key >= to.memory_.size() || piece.address + piece.bytes > to.memory_[piece.key].bytes) {
    std::fprintf(stderr, "srd: a write outside of registered memory\n");
    std::abort();
  }
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(flights_.size()));
    flights_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Flight& flight = flights_[index];
  const bool lost = one_in(rules.drop_one_in);
  flight.from = &from;
  flight.to = &to;
  flight.source = piece.data;
  flight.target = to.memory_[piece.key].data + piece.address;
  flight.bytes.resize(piece.bytes);
  flight.number = ++posted_;
  flight.context = context;
  flight.imm = imm != nullptr ? *imm : 0;
  flight.has_imm = imm != nullptr;
  flight.lost = lost;
  flight.stages = 0;
  from.under_way_ += 1;
  const uint32_t read = delay();
  at(read, index, Stage::kRead);
  at(read + delay(), index, Stage::kComplete);
  if (lost) return;
  const uint32_t store = read + delay();
  at(store, index, Stage::kStore);
  if (!flight.has_imm) return;
  at(store + delay(), index, Stage::kAnnounce);
  if (!one_in(rules.repeat_one_in)) return;
  repeated_ += 1;
  at(store + delay() + delay(), index, Stage::kAnnounce);
}

void SrdNetwork::step() {
  if (stopped_) return;
  now_ += 1;
  std::vector<Event>& due = events_[now_ % kHorizon];
  for (const Event& event : due) run(event);
  due.clear();
}

void SrdNetwork::run(const Event& event) {
  Flight& flight = flights_[event.flight];
  switch (event.stage) {
    case Stage::kRead:
      std::memcpy(flight.bytes.data(), flight.source, flight.bytes.size());
      break;
    case Stage::kStore:
      std::memcpy(flight.target, flight.bytes.data(), flight.bytes.size());
      break;
    case Stage::kAnnounce:
      overtaken_ += flight.number < last_announced_ ? 1 : 0;
      last_announced_ = flight.number;
      flight.to->completions_.push_back({nullptr, true, flight.imm, 0, ""});
      break;
    case Stage::kComplete:
      flight.from->under_way_ -= 1;
      flight.from->completions_.push_back(
          {flight.context, false, 0, flight.lost ? EIO : 0, flight.lost ? "it was lost" : ""});
      break;
  }
  if (--flight.stages == 0) free_.push_back(event.flight);
}

}  // namespace epfabric::test
