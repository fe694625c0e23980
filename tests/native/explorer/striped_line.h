// One end of a line within one process that keeps the order and breaks, where nothing happens by
// itself: each step is an action that somebody asks for. For striped_script.h.
#pragma once

#include <functional>
#include <optional>

#include "action.h"
#include "striped_endpoint.h"
#include "striped_model.h"
#include "traffic.h"
#include "verbs_greeting.h"

namespace epfabric::test {

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
class LineEnd : public Traffic {
 public:
  explicit LineEnd(const LinePlace& place)
      : script_(*place.script), line_(place.line), name_(script_.ends_[line_].size()) {
    script_.ends_[line_].push_back(this);
  }
  LineEnd(const LineEnd&) = delete;

  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress&) {
    known_ = true;
    return 0;
  }
  void meet() {}
  bool met(PeerIndex) const { return !failed_ && link_.met(); }
  const std::string& fault(PeerIndex) const { return fault_; }
  bool gone() const { return false; }
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
      forget_late();
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

 private:
  friend class StripedScript;
  LineEnd& other() const { return *script_.ends_[line_][1 - name_]; }

  ssize_t post(Pieces pieces, const uint32_t* imm, void* context) {
    if (!fault_.empty()) return -ENOTCONN;
    if (!met(0) || !script_.on(*this)) return -EAGAIN;
    send(pieces, imm, context);
    script_.ways_[name_] = static_cast<uint8_t>(script_.ways_[name_] >> 1);
    return 0;
  }

  bool store() { return !failed_ && reaches() && Traffic::store(other()); }
  bool complete() { return !failed_ && Traffic::complete(); }
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
    Traffic::flush(other(), reaches() ? arriving : 0);
  }
  bool give_up() { return undone() && !reaches() && fail(0); }
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

  StripedScript& script_;
  const uint8_t line_;
  const size_t name_;
  std::string fault_;
  bool known_ = false;
  agent::Acquaintance link_{};
  bool failed_ = false, noticed_ = true, ending_ = false, drained_ = false;
  agent::Told told_{}, heard_{};
  uint32_t polled_ = 0;            // immediates
  std::optional<uint32_t> early_;  // of these, when the first line broke
};

}  // namespace epfabric::test
