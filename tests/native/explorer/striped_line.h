// One end of a line within one process that keeps the order and breaks, where nothing happens by
// itself: each step is an action that somebody asks for. For striped_script.h.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "action.h"
#include "striped_endpoint.h"
#include "striped_model.h"
#include "verbs_greeting.h"

namespace epfabric::test {

using agent::Completion;
using agent::PeerAddress;
using agent::PeerIndex;
using agent::Piece;
using agent::Pieces;
using agent::RemoteKey;

class LineEnd;
class StripedEnd;
class StripedScript;

struct LinePlace {
  StripedScript* script;
  uint8_t line;
};

class StripedScript {
 public:
  static constexpr uint8_t kLines = StripedModel::kLines;
  const agent::Selection selection = agent::Selection::kLeastInflight;
  const std::array<LinePlace, kLines> lines{{{this, 0}, {this, 1}}};
  StripedFlaw flaw = StripedFlaw::kNone;

  StripedScript() = default;
  StripedScript(const StripedScript&) = delete;
  void at(uint64_t) {}
  void stop() { stopped_ = true; }
  // Else all goes by itself, and well.
  void by_hand(bool on) { by_hand_ = on; }
  // A line is gone, and does not come back.
  bool worn() const { return dead_[0] || dead_[1]; }
  // Which lines the posts of this end take in the turn that follows, as bits.
  void choose(const Action& action) { ways_[action.end] = action.index; }
  // What is none of the pods' and proxies'. False where there is nothing to do it with.
  inline bool act(const Action& action);
  // All lines that there are are met.
  inline bool whole() const;
  // All lines are met in one era, and carry nothing.
  inline bool settled() const;
  // What both ends have now is the first era, and no greeting is on its way.
  inline void rebase();
  // As the model has it.
  inline std::string state_of(size_t end) const;

 private:
  friend class LineEnd;
  friend class StripedEnd;
  struct Mail {
    uint8_t line;
    agent::Greeting greeting;
  };
  inline bool hear(size_t end);
  inline void all_by_itself(size_t end);
  inline bool on(const LineEnd& line) const;

  bool by_hand_ = false, stopped_ = false;
  std::array<std::vector<LineEnd*>, kLines> ends_;  // by line
  std::vector<StripedEnd*> whole_;
  std::array<std::optional<Mail>, 2> mail_;  // by the end that it goes to
  std::array<uint8_t, 2> ways_{};
  std::array<bool, kLines> dead_{};
  uint32_t base_ = 0;
};

// With one peer: the other one.
class LineEnd {
 public:
  struct LocalKey {
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit LineEnd(const LinePlace& place)
      : script_(*place.script), line_(place.line), name_(script_.ends_[line_].size()) {
    script_.ends_[line_].push_back(this);
  }
  LineEnd(const LineEnd&) = delete;

  LocalKey register_memory(std::byte* data, uint64_t) {
    memory_.push_back(data);
    return {{memory_.size() - 1, 0}};
  }
  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress&) {
    known_ = true;
    return 0;
  }
  void meet() {}
  bool met(PeerIndex) const { return !failed_ && link_.met(); }
  void attend() {}
  const std::string& fault(PeerIndex) const { return fault_; }
  uint64_t max_bytes() const { return 4096; }
  bool gathers() const { return true; }
  ssize_t write(PeerIndex, Pieces pieces, void* context) { return post(pieces, nullptr, context); }
  ssize_t write_with_imm(PeerIndex, Pieces pieces, uint32_t imm, void* context) {
    return post(pieces, &imm, context);
  }
  ssize_t write_through(PeerIndex, const Piece&, void*) { return -EOPNOTSUPP; }
  size_t poll(Completion* out, size_t capacity) {
    size_t got = 0;
    for (; got < capacity && !queue_.empty(); queue_.pop_front()) {
      if (queue_.front().last) {
        drained_ = true;
        continue;
      }
      out[got] = queue_.front().completion;
      polled_ += out[got++].record ? 1 : 0;
    }
    return got;
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
      flush(0);
      ending_ = true;
      late_.clear();
      queue_.push_back({{}, true});
    }
    return drained_;
  }
  void remake(PeerIndex, const agent::Told& told) {
    queue_.clear();
    link_ = again(link_, told.era);
    told_ = told;
    for (uint8_t i = 0; i < StripedScript::kLines; ++i) {
      LineEnd& line = *script_.ends_[i][name_];
      if (script_.flaw == StripedFlaw::kEarly && line.early_)
        told_.taken[i] -= line.polled_ - *line.early_;
      if (script_.flaw == StripedFlaw::kOwnLine && i != line_) told_.taken[i] = 0;
    }
    for (auto& ends : script_.ends_) {
      if (line_ + 1 == StripedScript::kLines) ends[name_]->early_.reset();
    }
    failed_ = ending_ = drained_ = false;
  }
  const agent::Told& told(PeerIndex) const { return heard_; }
  const std::string& broken_by(PeerIndex) const { return why_; }

 private:
  friend class StripedScript;
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

  LineEnd& other() const { return *script_.ends_[line_][1 - name_]; }

  ssize_t post(Pieces pieces, const uint32_t* imm, void* context) {
    if (!fault_.empty()) return -ENOTCONN;
    if (!met(0) || !script_.on(*this)) return -EAGAIN;
    flights_.push_back({{pieces.begin(), pieces.end()},
                        context,
                        imm != nullptr ? *imm : 0,
                        imm != nullptr,
                        false});
    script_.ways_[name_] = static_cast<uint8_t>(script_.ways_[name_] >> 1);
    return 0;
  }

  bool store() {
    const auto next = std::find_if(flights_.begin(), flights_.end(),
                                   [](const Flight& flight) { return !flight.done; });
    if (failed_ || next == flights_.end() || !reaches()) return false;
    other().receive(*next, bytes_of(*next));
    return next->done = true;
  }
  bool complete() {
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
    for (auto& ends : script_.ends_) {
      if (!ends[name_]->early_) ends[name_]->early_ = ends[name_]->polled_;
    }
    flush(arriving);
    noticed_ = false;
    return true;
  }
  void flush(size_t arriving) {
    failed_ = true;
    link_.acknowledged = 0;
    for (const Flight& flight : flights_) {
      if (!flight.done && arriving > 0 && reaches()) {
        arriving -= 1;
        other().late_.push_back({flight, bytes_of(flight)});
      }
      queue_.push_back({{flight.context, false, 0, agent::kBroken, why_}});
    }
    flights_.clear();
  }
  bool give_up() {
    const bool undone = std::any_of(flights_.begin(), flights_.end(),
                                    [](const Flight& flight) { return !flight.done; });
    return undone && !reaches() && fail(0);
  }
  void kill() {
    fault_ = "it is gone";
    script_.dead_[line_] = true;
    (void)fail(0);
  }
  // Whether what this end sends reaches the peer's end of the same connection.
  bool reaches() const {
    return !script_.dead_[line_] && !other().ending_ && other().link_.seen == link_.generation;
  }

  bool greet() {
    if (failed_ || link_.met() || script_.dead_[line_]) return false;
    send_greeting();
    return true;
  }
  void send_greeting() {
    if (script_.dead_[line_]) return;
    agent::Greeting greeting;
    greeting.generation = link_.generation;
    greeting.seen = link_.seen;
    greeting.acknowledged = link_.acknowledged;
    greeting.era = link_.era;
    greeting.taken = told_.taken;
    script_.mail_[1 - name_] = {line_, greeting};
  }
  void hear(agent::Greeting greeting) {
    if (failed_ || !known_) return;
    if (script_.flaw == StripedFlaw::kAcross) greeting.era = link_.era;
    const agent::Answer answer = agent::hear(link_, greeting);
    if (answer == agent::Answer::kConflict) {
      if (script_.flaw != StripedFlaw::kUnfollowed) heard_.era = greeting.era;
      fail(0);
    }
    if (answer == agent::Answer::kConnect) {
      link_.seen = greeting.generation;
      heard_ = {greeting.era, greeting.taken};
    }
    if (answer == agent::Answer::kConnect || answer == agent::Answer::kRepeat) send_greeting();
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

  StripedScript& script_;
  const uint8_t line_;
  const size_t name_;
  const std::string why_ = "it broke";
  std::string fault_;
  bool known_ = false;
  std::vector<std::byte*> memory_;
  agent::Acquaintance link_{};
  bool failed_ = false, noticed_ = true, ending_ = false, drained_ = false;
  agent::Told told_{}, heard_{};
  uint32_t polled_ = 0;            // immediates
  std::optional<uint32_t> early_;  // of these, when the first line broke
  std::deque<Flight> flights_;     // on their way to the peer
  std::deque<Queued> queue_;
  std::deque<Late> late_;  // of the peer's connection that broke
};

}  // namespace epfabric::test
