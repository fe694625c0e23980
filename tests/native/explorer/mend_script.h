// A network within one process whose connections keep order and break, where nothing happens by
// itself: each step is an action that somebody asks for. Its two ends do what verbs_endpoint.h does
// with queue pairs and greetings; the proxies over it are the real ones. For mend_explorer_test.cc,
// and with two lines, of which one rests, for standby_script.h.
#pragma once

#include <functional>

#include "action.h"
#include "mend_model.h"
#include "traffic.h"
#include "verbs_greeting.h"

namespace epfabric::test {

class MendEnd;
class MendScript;

struct MendPlace {
  MendScript* script;
  uint8_t line;
};

class MendScript {
 public:
  static constexpr uint8_t kLines = MendModel::kLines;
  MendFlaw flaw = MendFlaw::kNone;
  // As standby_endpoint.h asks for them: an end may wait for its line no more at any time.
  const std::array<MendPlace, kLines> lines{{{this, 0}, {this, 1}}};
  const uint32_t patience = 0;
  std::vector<std::function<void()>> hurries;  // by end

  MendScript() = default;
  MendScript(const MendScript&) = delete;
  void at(uint64_t) {}
  void stop() { stopped_ = true; }
  // Else all goes by itself, and well.
  void by_hand(bool on) { by_hand_ = on; }
  bool by_hand() const { return by_hand_; }
  // What is none of the pods' and proxies'. False where there is nothing to do it with.
  inline bool act(const Action& action);
  // Whether the ends are met.
  inline bool whole() const;
  // Whether they cannot be as they were at first.
  inline bool worn() const;
  // What both ends have now is the first connection, and no greeting is on its way.
  inline void rebase();
  // As the model has it.
  inline std::string state_of(size_t end) const;

 private:
  friend class MendEnd;
  struct Mail {
    uint8_t line;
    agent::Greeting greeting;
  };
  // On the line that its link goes over.
  inline MendEnd& present(size_t end) const;
  inline void send(size_t to, uint8_t line, const agent::Greeting& greeting);
  inline bool hear(size_t end, size_t index);

  bool by_hand_ = false, stopped_ = false;
  std::array<std::vector<MendEnd*>, kLines> ends_;  // by line
  std::array<std::deque<Mail>, 2> mail_;            // by the end that it goes to
  std::array<bool, kLines> dead_{};
  uint32_t base_era_ = 0;
  std::array<uint32_t, kLines> base_{};  // generations
};

// With one peer: the other one.
class MendEnd : public Traffic {
 public:
  explicit MendEnd(const MendPlace& place)
      : network_(*place.script), line_(place.line), name_(network_.ends_[line_].size()) {
    network_.ends_[line_].push_back(this);
  }
  explicit MendEnd(std::reference_wrapper<MendScript> network) : MendEnd(network.get().lines[0]) {}
  MendEnd(const MendEnd&) = delete;

  std::vector<std::byte> address() const { return {std::byte(name_)}; }
  PeerIndex insert(const PeerAddress&) {
    known_ = true;
    return 0;
  }
  void meet() {
    if (!network_.by_hand_ && network_.ends_[line_].size() == 2) greet();
    if (!network_.by_hand_) hear_all();
  }
  bool met(PeerIndex) const { return !failed_ && !resting_ && link_.met(); }
  const std::string& fault(PeerIndex) const { return fault_; }
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

  bool next_broken(PeerIndex& out) {
    if (noticed_) return false;
    noticed_ = true;
    out = 0;
    return true;
  }
  bool sever(PeerIndex) {
    if (link_.seen == 0) return true;
    if (!ending_) {
      if (!failed_) flush(0);
      noticed_ = ending_ = true;
      if (network_.flaw != MendFlaw::kLateOnes) forget_late();
      queue_.push_back({{}, true});
    }
    return drained_ || network_.flaw == MendFlaw::kUnpolled;
  }
  void remake(PeerIndex, const agent::Told& told) {
    queue_.clear();
    link_ = again(link_, told.era);
    told_ = told;
    resting_ = failed_ = ending_ = drained_ = false;
  }
  void rest(PeerIndex) {
    queue_.clear();
    failed_ = ending_ = drained_ = false;
    resting_ = noticed_ = true;
  }
  uint32_t heard(PeerIndex) const { return heard_era_; }
  bool gone() const { return false; }
  std::string name() const { return "line " + std::to_string(line_); }
  MendFlaw flaw() const { return network_.flaw; }
  const agent::Told& told(PeerIndex) const { return heard_; }

 protected:
  ssize_t post(Pieces pieces, const uint32_t* imm, void* context, const uint64_t* add = nullptr) {
    if (!fault_.empty()) return -ENOTCONN;
    if (!met(0)) return -EAGAIN;
    send(pieces, imm, context, add);
    return 0;
  }

 private:
  friend class MendScript;
  MendEnd& other() const { return *network_.ends_[line_][1 - name_]; }

  void all_by_itself() {
    hear_all();
    while (store()) {
    }
    while (answer()) {
    }
  }
  void hear_all() {
    while (network_.hear(name_, 0)) {
    }
  }

  bool store() {
    if (failed_ || !undone() || !reaches()) return false;
    const bool alone = !other().any_late() || network_.flaw == MendFlaw::kLateOnes;
    return alone && Traffic::store(other());
  }
  bool answer() { return !failed_ && complete(); }
  bool fail(size_t arriving) {
    if (failed_ || resting_) return false;
    flush(arriving);
    noticed_ = false;
    return true;
  }
  void flush(size_t arriving) {
    failed_ = true;
    link_.acknowledged = 0;
    Traffic::flush(other(), reaches() ? arriving : 0);
  }
  bool give_up(size_t arriving) { return undone() && !reaches() && fail(arriving); }
  bool kill() {
    fault_ = "it is gone";
    network_.dead_[line_] = true;
    (void)fail(0);
    return true;
  }
  // Whether what this end sends reaches the peer's end of the same connection.
  bool reaches() const {
    return !network_.dead_[line_] && !other().ending_ && !other().resting_ &&
           other().link_.seen == link_.generation;
  }

  bool greet() {
    if (failed_ || resting_ || network_.dead_[line_] || link_.met()) return false;
    send_greeting();
    return true;
  }
  void send_greeting() {
    agent::Greeting greeting;
    greeting.generation = link_.generation;
    greeting.seen = link_.seen;
    greeting.acknowledged = link_.acknowledged;
    greeting.era = link_.era;
    greeting.taken = told_.taken;
    network_.send(1 - name_, line_, greeting);
  }
  void hear(const agent::Greeting& greeting) {
    if (!known_) return;
    if (greeting.era > heard_era_ && !(resting_ && network_.flaw == MendFlaw::kUnheard)) {
      if (resting_ && fault_.empty()) noticed_ = false;
      heard_era_ = greeting.era;
    }
    if (resting_ || failed_) return;
    const bool any = network_.flaw == MendFlaw::kAnyGeneration;
    const agent::Answer answer = any ? hear_any(link_, greeting) : agent::hear(link_, greeting);
    if (answer == agent::Answer::kConflict) fail(0);
    if (answer == agent::Answer::kConnect) {
      link_.seen = greeting.generation;
      heard_.taken = greeting.taken;
    }
    if (answer == agent::Answer::kConnect || answer == agent::Answer::kRepeat) send_greeting();
  }
  // As agent::hear(), but one of an older connection counts.
  static agent::Answer hear_any(agent::Acquaintance& link, const agent::Greeting& greeting) {
    if (greeting.generation >= link.generation) return agent::hear(link, greeting);
    if (link.seen == 0) return agent::Answer::kConnect;
    return greeting.acknowledged == greeting.generation ? agent::Answer::kNothing
                                                        : agent::Answer::kRepeat;
  }

  MendScript& network_;
  const uint8_t line_;
  const size_t name_;
  std::string fault_;
  bool known_ = false;
  agent::Acquaintance link_{};
  bool failed_ = false, noticed_ = true, ending_ = false, drained_ = false, resting_ = false;
  uint32_t heard_era_ = 0;
  agent::Told told_{}, heard_{};
};
static_assert(agent::Resting<MendEnd>);

MendEnd& MendScript::present(size_t end) const {
  const bool second = ends_[1].size() > end && !ends_[1][end]->resting_;
  return *ends_[second ? 1 : 0][end];
}

bool MendScript::act(const Action& action) {
  MendEnd& end = present(action.end);
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
      return hear(action.end, action.index);
    case Verb::kKill:
      return ends_[(action.line + base_era_) % kLines][action.end]->kill();
    case Verb::kLeave:
      if (!end.met(0)) hurries[action.end]();
      return true;
    default:
      return false;
  }
}

void MendScript::send(size_t to, uint8_t line, const agent::Greeting& greeting) {
  std::deque<Mail>& mail = mail_[to];
  const bool there = std::any_of(mail.begin(), mail.end(), [&](const Mail& one) {
    return one.line == line && std::memcmp(&one.greeting, &greeting, sizeof(greeting)) == 0;
  });
  if (there || dead_[line]) return;
  if (mail.size() == (ends_[1].empty() ? MendModel::kMail : 1)) mail.pop_front();
  mail.push_back({line, greeting});
}

bool MendScript::hear(size_t end, size_t index) {
  if (index >= mail_[end].size()) return false;
  const Mail mail = mail_[end][index];
  mail_[end].erase(mail_[end].begin() + static_cast<long>(index));
  ends_[mail.line][end]->hear(mail.greeting);
  return true;
}

bool MendScript::whole() const { return present(0).met(0) && present(1).met(0); }

bool MendScript::worn() const {
  const auto other = [](const std::vector<MendEnd*>& ends) {
    return !ends.empty() && ends[0]->link_.generation != ends[1]->link_.generation;
  };
  return dead_[0] || dead_[1] || std::any_of(ends_.begin(), ends_.end(), other);
}

void MendScript::rebase() {
  base_era_ = present(0).link_.era;
  mail_ = {};
  for (size_t line = 0; line < kLines && !ends_[line].empty(); ++line)
    base_[line] = ends_[line][0]->link_.generation - 1;
}

std::string MendScript::state_of(size_t end) const {
  const MendEnd& one = present(end);
  const auto relative = [&](uint32_t generation) {
    return std::to_string(generation == 0 ? 0 : generation - base_[one.line_]) + " ";
  };
  return std::to_string(one.link_.era - base_era_) + " " + relative(one.link_.generation) +
         relative(one.link_.seen) + relative(one.link_.acknowledged) +
         (one.failed_ ? "failed" : "whole");
}

}  // namespace epfabric::test
