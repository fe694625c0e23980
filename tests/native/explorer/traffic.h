// What an end of a scripted connection has under way: writes on their way to its peer, late ones of
// a connection that broke, and a completion queue. Nothing of it moves by itself. Base of the ends
// in mend_script.h and striped_line.h.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "endpoint.h"

namespace epfabric::test {

using agent::Completion;
using agent::PeerAddress;
using agent::PeerIndex;
using agent::Piece;
using agent::Pieces;
using agent::RemoteKey;

class Traffic {
 public:
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };
  LocalKey register_memory(std::byte* data, uint64_t) {
    memory_.push_back(data);
    return {{memory_.size() - 1, 0}};
  }
  void attend() {}
  uint64_t max_bytes() const { return 4096; }
  bool gathers() const { return true; }
  int wait_fd() { return agent::kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }
  const std::string& broken_by(PeerIndex) const { return why_; }

 protected:
  struct Queued {
    Completion completion;
    bool last = false;
  };

  // With `add` it is an ADD to the word that its one piece names.
  void send(Pieces pieces, const uint32_t* imm, void* context, const uint64_t* add = nullptr) {
    flights_.push_back({{pieces.begin(), pieces.end()},
                        context,
                        imm != nullptr ? *imm : 0,
                        imm != nullptr,
                        false,
                        add != nullptr,
                        add != nullptr ? *add : 0});
  }
  bool idle() const { return flights_.empty(); }
  bool undone() const { return std::any_of(flights_.begin(), flights_.end(), is_undone); }
  // The oldest write that is not done is.
  bool store(Traffic& peer) {
    const auto next = std::find_if(flights_.begin(), flights_.end(), is_undone);
    if (next == flights_.end()) return false;
    next->word = peer.receive(*next, bytes_of(*next));
    return next->done = true;
  }
  // The oldest one completes, if it is done.
  bool complete() {
    if (flights_.empty() || !flights_.front().done) return false;
    const Flight& first = flights_.front();
    if (first.adds)
      std::memcpy(const_cast<void*>(first.pieces[0].data), &first.word, sizeof(first.word));
    queue_.push_back({{first.context, false, 0, 0, ""}});
    flights_.pop_front();
    return true;
  }
  bool arrive_late() {
    if (late_.empty()) return false;
    receive(late_.front().flight, late_.front().bytes);
    late_.pop_front();
    return true;
  }
  // All fails; the first `arriving` of what is not done arrive at the peer later.
  void flush(Traffic& peer, size_t arriving) {
    for (const Flight& flight : flights_) {
      if (!flight.done && arriving > 0) {
        arriving -= 1;
        peer.late_.push_back({flight, bytes_of(flight)});
      }
      queue_.push_back({{flight.context, false, 0, agent::kBroken, why_}});
    }
    flights_.clear();
  }
  bool any_late() const { return !late_.empty(); }
  void forget_late() { late_.clear(); }

  std::deque<Queued> queue_;

 private:
  struct Flight {
    std::vector<Piece> pieces;
    void* context;
    uint32_t imm;
    bool has_imm, done, adds;
    uint64_t word;  // what is added, and once it is done what was there before
  };
  using Bytes = std::vector<std::vector<std::byte>>;
  struct Late {  // with the bytes that it was sent with
    Flight flight;
    Bytes bytes;
  };
  static bool is_undone(const Flight& flight) { return !flight.done; }
  static Bytes bytes_of(const Flight& flight) {
    Bytes out;
    for (const Piece& piece : flight.pieces) {
      const auto* data = static_cast<const std::byte*>(piece.data);
      out.emplace_back(data, data + piece.bytes);
    }
    return out;
  }
  // Of an ADD, the value before.
  uint64_t receive(const Flight& flight, const Bytes& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const Piece& piece = flight.pieces[i];
      const auto key = static_cast<uint32_t>(piece.key);  // the other half is not the network's
      std::byte* const to = memory_[key] + piece.address;
      if (flight.adds)
        return std::exchange(*reinterpret_cast<uint64_t*>(to),
                             *reinterpret_cast<uint64_t*>(to) + flight.word);
      std::memcpy(to, bytes[i].data(), bytes[i].size());
    }
    if (flight.has_imm) queue_.push_back({{nullptr, true, flight.imm, 0, ""}});
    return 0;
  }

  const std::string why_ = "it broke";
  std::vector<std::byte*> memory_;
  std::deque<Flight> flights_;
  std::deque<Late> late_;  // of the peer's connection that broke
};

}  // namespace epfabric::test
