// A network within one process that keeps no order, where nothing happens by itself: each step is
// an action that somebody asks for. The proxies over it are the real ones. For
// gate_explorer_test.cc.
#pragma once

#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "action.h"
#include "endpoint.h"
#include "gate_model.h"
#include "record.h"

namespace epfabric::test {

using agent::Completion;
using agent::PeerAddress;
using agent::PeerIndex;
using agent::Piece;
using agent::Pieces;
using agent::RemoteKey;

class GateEnd;

class GateScript {
 public:
  GateFlaw flaw = GateFlaw::kNone;
  uint32_t repeats = UINT32_MAX;  // announcements that may still come twice

  void at(uint64_t) {}
  void stop() { stopped_ = true; }
  // Else all goes by itself, and well.
  inline void by_hand(bool on);
  // What is none of the pods' and proxies'. False where there is nothing to do it with.
  inline bool act(const Action& action);
  void rebase() {}
  inline std::string state_of(size_t end) const;

 private:
  friend class GateEnd;
  bool by_hand_ = false, stopped_ = false;
  std::vector<GateEnd*> ends_;
};

// With one peer: the other one.
class GateEnd {
 public:
  static constexpr bool kUnordered = true;
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit GateEnd(std::reference_wrapper<GateScript> network)
      : network_(network), name_(network_.ends_.size()) {
    network_.ends_.push_back(this);
  }
  GateEnd(const GateEnd&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t) {
    memory_.push_back(data);
    return {{memory_.size() - 1, 0}};
  }
  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress&) { return 0; }
  void meet() {}
  bool met(PeerIndex) const { return true; }
  void attend() {}
  const std::string& fault(PeerIndex) const { return no_fault_; }
  uint64_t max_bytes() const { return 4096; }
  bool gathers() const { return false; }
  ssize_t write(PeerIndex, Pieces pieces, void* context) { return post(pieces, 0, context); }
  ssize_t write_with_imm(PeerIndex, Pieces pieces, uint32_t imm, void* context) {
    return post(pieces, imm, context);
  }
  ssize_t write_through(PeerIndex, const Piece&, void*) { return -EOPNOTSUPP; }
  size_t poll(Completion* out, size_t) {
    if (!network_.by_hand_ && !network_.stopped_) all_by_itself();
    if (queue_.empty()) return 0;
    out[0] = queue_.front();
    queue_.pop_front();
    return 1;
  }
  int wait_fd() { return agent::kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }

 protected:
  const GateScript& network() const { return network_; }

 private:
  friend class GateScript;
  struct Flight {
    Piece piece;
    uint32_t imm;
    void* context;
    std::vector<std::byte> bytes{};  // once they were read
    bool stored = false, completed = false;
    int announced = 0;
  };

  GateEnd& other() const { return *network_.ends_[1 - name_]; }

  // Only what sets up the link has no immediate.
  ssize_t post(Pieces pieces, uint32_t imm, void* context) {
    const bool credit = agent::unpack_imm(imm).type == agent::kImmCredit;
    (credit ? credits_ : operations_).push_back({pieces[0], imm, context});
    return 0;
  }
  void all_by_itself() {
    for (std::deque<Flight>* flights : {&operations_, &credits_}) {
      for (Flight& flight : *flights) {
        store(flight);
        if (flight.imm != 0) announce(flight);
        complete(flight);
      }
      flights->clear();
    }
  }
  Flight* flight(uint8_t index) {
    std::deque<Flight>& of = index >= GateModel::kCredits ? credits_ : operations_;
    const size_t i = index % GateModel::kCredits;
    return i < of.size() ? &of[i] : nullptr;
  }

  static void read(Flight& flight) {
    if (!flight.bytes.empty()) return;
    const auto* data = static_cast<const std::byte*>(flight.piece.data);
    flight.bytes.assign(data, data + flight.piece.bytes);
  }
  bool store(Flight& flight) {
    if (flight.stored) return false;
    read(flight);
    std::byte* to = other().memory_[flight.piece.key] + flight.piece.address;
    std::memcpy(to, flight.bytes.data(), flight.bytes.size());
    return flight.stored = true;
  }
  // A payload's bytes are stored before, as a step of its own.
  bool announce(Flight& flight) {
    if (agent::unpack_imm(flight.imm).type != agent::kImmPayload) store(flight);
    if (!flight.stored || flight.announced == 2) return false;
    if (flight.announced == 1 && network_.repeats == 0) return false;
    network_.repeats -= flight.announced == 1 ? 1 : 0;
    flight.announced += 1;
    other().queue_.push_back({nullptr, true, flight.imm, 0, ""});
    return true;
  }
  bool complete(Flight& flight) {
    if (flight.completed) return false;
    read(flight);
    queue_.push_back({flight.context, false, 0, 0, ""});
    return flight.completed = true;
  }

  GateScript& network_;
  const size_t name_;
  const std::string no_fault_;
  std::vector<std::byte*> memory_;
  std::deque<Flight> operations_, credits_;  // of this end, in the order in which they were posted
  std::deque<Completion> queue_;
};
static_assert(agent::Unordered<GateEnd>);

// What was under way before has to be done.
void GateScript::by_hand(bool on) {
  by_hand_ = on;
  for (GateEnd* end : ends_) {
    end->operations_.clear();
    end->credits_.clear();
  }
}

bool GateScript::act(const Action& action) {
  GateEnd& end = *ends_[action.end];
  GateEnd::Flight* flight = end.flight(action.index);
  if (flight == nullptr) return false;
  switch (action.verb) {
    case Verb::kStore:
      return end.store(*flight);
    case Verb::kAnnounce:
      return end.announce(*flight);
    case Verb::kComplete:
      return end.complete(*flight);
    default:
      return false;
  }
}

std::string GateScript::state_of(size_t end) const {
  return std::to_string(ends_[end]->operations_.size()) + " posted, " +
         std::to_string(ends_[end]->credits_.size()) + " credits";
}

}  // namespace epfabric::test
