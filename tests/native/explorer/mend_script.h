// A network within one process whose connections keep order and break, where nothing happens by
// itself: each step is an action that somebody asks for. Its two ends do what verbs_endpoint.h does
// with queue pairs and greetings; the proxies over it are the real ones. For mend_explorer_test.cc.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "action.h"
#include "endpoint.h"
#include "mend_model.h"
#include "verbs_greeting.h"

namespace epfabric::test {

using agent::Completion;
using agent::PeerAddress;
using agent::PeerIndex;
using agent::Piece;
using agent::Pieces;
using agent::RemoteKey;

class MendEnd;

class MendScript {
 public:
  MendFlaw flaw = MendFlaw::kNone;

  void at(uint64_t) {}
  void stop() { stopped_ = true; }
  // Else all goes by itself, and well.
  void by_hand(bool on) { by_hand_ = on; }
  // What is none of the pods' and proxies'. False where there is nothing to do it with.
  inline bool act(const Action& action);
  // What both ends have now is the first generation, and no greeting is on its way.
  inline void rebase();
  // As the model has it.
  inline std::string state_of(size_t end) const;

 private:
  friend class MendEnd;
  bool by_hand_ = false, stopped_ = false;
  std::vector<MendEnd*> ends_;
  uint32_t base_ = 0;
};

// With one peer: the other one.
class MendEnd {
 public:
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit MendEnd(std::reference_wrapper<MendScript> network)
      : network_(network), name_(network_.ends_.size()) {
    network_.ends_.push_back(this);
  }
  MendEnd(const MendEnd&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t) {
    memory_.push_back(data);
    return {{memory_.size() - 1, 0}};
  }
  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress&) {
    known_ = true;
    return 0;
  }
  void meet() {
    if (!network_.by_hand_ && network_.ends_.size() == 2 && !link_.met()) greet();
    if (!network_.by_hand_) hear_all();
  }
  bool met(PeerIndex) const { return !failed_ && link_.met(); }
  void attend() {}
  const std::string& fault(PeerIndex) const { return no_fault_; }
  uint64_t max_bytes() const { return 4096; }
  bool gathers() const { return true; }
  ssize_t write(PeerIndex, Pieces pieces, void* context) { return post(pieces, nullptr, context); }
  ssize_t write_with_imm(PeerIndex, Pieces pieces, uint32_t imm, void* context) {
    return post(pieces, &imm, context);
  }
  ssize_t write_through(PeerIndex, const Piece& piece, void* context) {
    return post({&piece, 1}, nullptr, context);
  }
  size_t poll(Completion* out, size_t) {
    if (!network_.by_hand_ && !network_.stopped_) all_by_itself();
    if (queue_.empty()) return 0;
    const Queued first = queue_.front();
    queue_.pop_front();
    if (first.last) {
      drained_ = true;
      return 0;
    }
    out[0] = first.completion;
    return 1;
  }
  int wait_fd() { return agent::kNoWaitFd; }
  static std::string text_of(int error) { return std::strerror(error); }

  bool next_broken(PeerIndex& out) {
    if (noticed_) return false;
    noticed_ = true;
    out = 0;
    return true;
  }
  bool sever(PeerIndex) {
    if (link_.seen == 0) return true;
    if (!ending_) {
      ending_ = true;
      if (network_.flaw != MendFlaw::kLateOnes) late_.clear();
      queue_.push_back({{}, true});
    }
    return drained_ || network_.flaw == MendFlaw::kUnpolled;
  }
  void remake(PeerIndex, const agent::Told& told) {
    queue_.clear();
    link_ = again(link_);
    told_ = told;
    failed_ = ending_ = drained_ = false;
  }
  const agent::Told& told(PeerIndex) const { return heard_; }
  const std::string& broken_by(PeerIndex) const { return why_; }

 protected:
  const MendScript& network() const { return network_; }

 private:
  friend class MendScript;
  struct Flight {
    std::vector<Piece> pieces;
    void* context;
    uint32_t imm;
    bool has_imm, done;
  };
  struct Queued {
    Completion completion;
    bool last = false;
  };
  struct Late {  // with the bytes that it was sent with
    Flight flight;
    std::vector<std::vector<std::byte>> bytes;
  };

  MendEnd& other() const { return *network_.ends_[1 - name_]; }

  ssize_t post(Pieces pieces, const uint32_t* imm, void* context) {
    if (!met(0)) return -EAGAIN;
    flights_.push_back({{pieces.begin(), pieces.end()},
                        context,
                        imm != nullptr ? *imm : 0,
                        imm != nullptr,
                        false});
    return 0;
  }
  void all_by_itself() {
    hear_all();
    while (store()) {
    }
    while (answer()) {
    }
  }
  void hear_all() {
    while (!mail_.empty()) hear(0);
  }

  bool store() {
    const auto next = std::find_if(flights_.begin(), flights_.end(),
                                   [](const Flight& flight) { return !flight.done; });
    if (failed_ || next == flights_.end() || !reaches()) return false;
    if (!other().late_.empty() && network_.flaw != MendFlaw::kLateOnes) return false;
    other().receive(*next, bytes_of(*next));
    next->done = true;
    return true;
  }
  bool answer() {
    if (failed_ || flights_.empty() || !flights_.front().done) return false;
    queue_.push_back({{flights_.front().context, false, 0, 0, ""}});
    flights_.pop_front();
    return true;
  }
  bool arrive_late() {
    if (late_.empty()) return false;
    receive(late_.front().flight, late_.front().bytes);
    late_.pop_front();
    return true;
  }
  bool fail(size_t arriving) {
    if (failed_) return false;
    failed_ = true;
    noticed_ = false;
    link_.acknowledged = 0;
    for (const Flight& flight : flights_) {
      if (!flight.done && arriving > 0 && reaches()) {
        arriving -= 1;
        other().late_.push_back({flight, bytes_of(flight)});
      }
      queue_.push_back({{flight.context, false, 0, agent::kBroken, why_}});
    }
    flights_.clear();
    return true;
  }
  bool give_up(size_t arriving) {
    const bool undone = std::any_of(flights_.begin(), flights_.end(),
                                    [](const Flight& flight) { return !flight.done; });
    return undone && !reaches() && fail(arriving);
  }
  // Whether what this end sends reaches the peer's end of the same connection.
  bool reaches() const { return !other().ending_ && other().link_.seen == link_.generation; }

  bool greet() {
    if (failed_ || link_.met()) return false;
    send_greeting();
    return true;
  }
  void send_greeting() {
    agent::Greeting greeting;
    greeting.generation = link_.generation;
    greeting.seen = link_.seen;
    greeting.acknowledged = link_.acknowledged;
    greeting.taken = told_.taken;
    std::deque<agent::Greeting>& mail = other().mail_;
    const bool there = std::any_of(mail.begin(), mail.end(), [&](const agent::Greeting& one) {
      return std::memcmp(&one, &greeting, sizeof(one)) == 0;
    });
    if (there) return;
    if (mail.size() == MendModel::kMail) mail.pop_front();
    mail.push_back(greeting);
  }
  bool hear(size_t index) {
    if (index >= mail_.size()) return false;
    const agent::Greeting greeting = mail_[index];
    mail_.erase(mail_.begin() + static_cast<long>(index));
    if (failed_ || !known_) return true;
    const bool any = network_.flaw == MendFlaw::kAnyGeneration;
    const agent::Answer answer = any ? hear_any(link_, greeting) : agent::hear(link_, greeting);
    if (answer == agent::Answer::kConflict) fail(0);
    if (answer == agent::Answer::kConnect) {
      link_.seen = greeting.generation;
      heard_.taken = greeting.taken;
    }
    if (answer == agent::Answer::kConnect || answer == agent::Answer::kRepeat) send_greeting();
    return true;
  }
  // As agent::hear(), but one of an older connection counts.
  static agent::Answer hear_any(agent::Acquaintance& link, const agent::Greeting& greeting) {
    if (greeting.generation >= link.generation) return agent::hear(link, greeting);
    if (link.seen == 0) return agent::Answer::kConnect;
    return greeting.acknowledged == greeting.generation ? agent::Answer::kNothing
                                                        : agent::Answer::kRepeat;
  }

  std::vector<std::vector<std::byte>> bytes_of(const Flight& flight) const {
    std::vector<std::vector<std::byte>> out;
    for (const Piece& piece : flight.pieces) {
      const auto* data = static_cast<const std::byte*>(piece.data);
      out.emplace_back(data, data + piece.bytes);
    }
    return out;
  }
  void receive(const Flight& flight, const std::vector<std::vector<std::byte>>& bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const Piece& piece = flight.pieces[i];
      std::memcpy(memory_[piece.key] + piece.address, bytes[i].data(), bytes[i].size());
    }
    if (flight.has_imm) queue_.push_back({{nullptr, true, flight.imm, 0, ""}});
  }

  MendScript& network_;
  const size_t name_;
  const std::string no_fault_, why_ = "it broke";
  bool known_ = false;
  std::vector<std::byte*> memory_;
  agent::Acquaintance link_{};
  bool failed_ = false, noticed_ = true, ending_ = false, drained_ = false;
  agent::Told told_{}, heard_{};
  std::deque<Flight> flights_;  // on their way to the peer
  std::deque<Queued> queue_;
  std::deque<Late> late_;             // of the peer's connection that broke
  std::deque<agent::Greeting> mail_;  // on their way to this end
};
static_assert(agent::Mending<MendEnd>);

bool MendScript::act(const Action& action) {
  MendEnd& end = *ends_[action.end];
  switch (action.verb) {
    case Verb::kStore:
      return end.store();
    case Verb::kAnswer:
      return end.answer();
    case Verb::kLate:
      return end.arrive_late();
    case Verb::kBreak:
      return end.fail(action.index);
    case Verb::kGiveUp:
      return end.give_up(action.index);
    case Verb::kGreet:
      return end.greet();
    case Verb::kHear:
      return end.hear(action.index);
    default:
      return false;
  }
}

void MendScript::rebase() {
  base_ = ends_[0]->link_.generation - 1;
  for (MendEnd* end : ends_) end->mail_.clear();
}

std::string MendScript::state_of(size_t end) const {
  const MendEnd& one = *ends_[end];
  const auto relative = [this](uint32_t generation) {
    return std::to_string(generation == 0 ? 0 : generation - base_) + " ";
  };
  return relative(one.link_.generation) + relative(one.link_.seen) +
         relative(one.link_.acknowledged) + (one.failed_ ? "failed" : "whole");
}

}  // namespace epfabric::test
