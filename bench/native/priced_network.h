// A network within one process and in a time of its own, in which everything has its price: each
// message at its sender's NIC, each byte on its line, and a queue with an end before the receiver,
// behind which a message is lost and sent again later. It keeps no order and completes a write when
// the receiver's NIC has it, as EFA does. For flow.cc and stripes.cc: what they print does not
// depend on the machine.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include "endpoint.h"

namespace epfabric::bench {

using namespace epfabric::agent;

struct Prices {
  uint64_t message_ns = 50;        // at the sender's NIC
  uint64_t ns_per_kib = 82;        // of a line: 100 Gbit/s
  uint64_t way_ns = 5000;          // there or back, idle
  uint64_t jitter_ns = 1500;       // beyond that, at most
  uint64_t queue_bytes = 1 << 20;  // before each receiver's line
  uint64_t again_ns = 400'000;     // until a lost message is sent again
  size_t posts = 4096;             // under way from one endpoint
};

class PricedEndpoint;

class PricedNetwork {
 public:
  explicit PricedNetwork(const Prices& prices) : prices_(prices) {}

  inline void at(uint64_t now_ns);
  void stop() { stopped_ = true; }
  // The line to this endpoint, counted as made, is so many times slower than the others.
  inline void slow_down(size_t endpoint, uint64_t times);
  uint64_t messages() const { return messages_; }
  uint64_t lost() const { return lost_; }

 private:
  friend class PricedEndpoint;

  enum class Stage : uint8_t { kQueue, kArrive, kComplete };
  struct Event {
    uint64_t at_ns, number;
    uint32_t flight;
    Stage stage;
    bool operator>(const Event& other) const {
      return at_ns != other.at_ns ? at_ns > other.at_ns : number > other.number;
    }
  };
  struct Flight {
    PricedEndpoint *from, *to;
    const void* source;
    std::byte* target;
    uint64_t bytes;
    void* context;
    uint32_t imm;
    bool has_imm;
  };

  void add(uint64_t at_ns, uint32_t flight, Stage stage) {
    events_.push({at_ns, ++number_, flight, stage});
  }
  uint64_t line_ns(uint64_t bytes) const { return bytes * prices_.ns_per_kib / 1024; }
  uint64_t way() { return prices_.way_ns + random_() % (prices_.jitter_ns + 1); }
  inline void run(const Event& event);

  const Prices prices_;
  std::minstd_rand random_;
  std::vector<PricedEndpoint*> endpoints_;
  std::deque<Flight> flights_;
  std::vector<uint32_t> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t now_ns_ = 0, number_ = 0, messages_ = 0, lost_ = 0;
  bool stopped_ = false;
};

class PricedEndpoint {
 public:
  static constexpr bool kUnordered = true;
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit PricedEndpoint(std::reference_wrapper<PricedNetwork> network)
      : network_(network), name_(network_.endpoints_.size()) {
    network_.endpoints_.push_back(this);
  }
  PricedEndpoint(const PricedEndpoint&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t) {
    memory_.push_back(data);
    return {{memory_.size() - 1, 0}};
  }
  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress& peer) { return std::to_integer<size_t>(peer.address[0]); }
  void meet() {}
  void attend() {}
  bool met(PeerIndex) const { return true; }
  const std::string& fault(PeerIndex) const { return no_fault_; }
  uint64_t max_bytes() const { return 1 << 20; }
  bool gathers() const { return false; }
  ssize_t write(PeerIndex peer, Pieces pieces, void* context) {
    return post(peer, pieces[0], nullptr, context);
  }
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    return post(peer, pieces[0], &imm, context);
  }
  ssize_t write_through(PeerIndex, const Piece&, void*) { return -EOPNOTSUPP; }
  uint64_t line_ns_per_kib() const { return network_.prices_.ns_per_kib; }
  size_t poll(Completion* out, size_t capacity) {
    size_t got = 0;
    for (; got < capacity && !completions_.empty(); ++got) {
      out[got] = completions_.front();
      completions_.pop_front();
    }
    return got;
  }
  int wait_fd() { return kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }

 private:
  friend class PricedNetwork;

  ssize_t post(PeerIndex peer, const Piece& piece, const uint32_t* imm, void* context) {
    PricedNetwork& net = network_;
    if (under_way_ >= net.prices_.posts) return -EAGAIN;
    if (net.free_.empty()) {
      net.free_.push_back(static_cast<uint32_t>(net.flights_.size()));
      net.flights_.emplace_back();
    }
    const uint32_t flight = net.free_.back();
    net.free_.pop_back();
    PricedEndpoint* to = net.endpoints_[peer];
    net.flights_[flight] = {this,
                            to,
                            piece.data,
                            to->memory_[piece.key] + piece.address,
                            piece.bytes,
                            context,
                            imm != nullptr ? *imm : 0,
                            imm != nullptr};
    under_way_ += 1;
    net.messages_ += 1;
    sent_ns_ = std::max(sent_ns_, net.now_ns_) +
               std::max(net.prices_.message_ns, net.line_ns(piece.bytes));
    net.add(sent_ns_ + net.way(), flight, PricedNetwork::Stage::kQueue);
    return 0;
  }

  const std::string no_fault_;
  PricedNetwork& network_;
  const size_t name_;
  std::vector<std::byte*> memory_;
  std::deque<Completion> completions_;
  size_t under_way_ = 0;
  uint64_t times_ = 1;        // slower than other lines
  uint64_t sent_ns_ = 0;      // when its NIC is free
  uint64_t received_ns_ = 0;  // when the line to it is
};
static_assert(Unordered<PricedEndpoint> && Paced<PricedEndpoint>);

void PricedNetwork::slow_down(size_t endpoint, uint64_t times) {
  endpoints_[endpoint]->times_ = times;
}

// Does what is due by then.
void PricedNetwork::at(uint64_t now_ns) {
  while (!stopped_ && !events_.empty() && events_.top().at_ns <= now_ns) {
    const Event event = events_.top();
    events_.pop();
    now_ns_ = event.at_ns;
    run(event);
  }
  now_ns_ = now_ns;
}

void PricedNetwork::run(const Event& event) {
  Flight& flight = flights_[event.flight];
  PricedEndpoint& to = *flight.to;
  switch (event.stage) {
    case Stage::kQueue: {
      const uint64_t waits = to.received_ns_ > now_ns_ ? to.received_ns_ - now_ns_ : 0;
      const uint64_t takes = to.times_ * line_ns(flight.bytes);
      if (waits + takes > to.times_ * line_ns(prices_.queue_bytes)) {
        lost_ += 1;
        return add(now_ns_ + prices_.again_ns + random_() % (prices_.again_ns / 4), event.flight,
                   Stage::kQueue);
      }
      to.received_ns_ = now_ns_ + waits + takes;
      return add(to.received_ns_, event.flight, Stage::kArrive);
    }
    case Stage::kArrive:
      std::memcpy(flight.target, flight.source, flight.bytes);
      if (flight.has_imm) to.completions_.push_back({nullptr, true, flight.imm, 0, ""});
      return add(now_ns_ + way(), event.flight, Stage::kComplete);
    case Stage::kComplete:
      flight.from->under_way_ -= 1;
      flight.from->completions_.push_back({flight.context, false, 0, 0, ""});
      free_.push_back(event.flight);
  }
}

}  // namespace epfabric::bench
