// Two lines of a network within one process, and over them the real striped endpoint and the real
// proxies. For striped_explorer_test.cc.
#pragma once

#include "striped_line.h"

namespace epfabric::test {

// Lines meet as they are told, and not when time has passed.
class StripedEnd : public agent::StripedEndpoint<LineEnd> {
 public:
  explicit StripedEnd(std::reference_wrapper<StripedScript> script)
      : StripedEndpoint(script.get()), script_(script), name_(script_.whole_.size()) {
    script_.whole_.push_back(this);
  }
  void meet() {
    if (!script_.by_hand_) StripedEndpoint::meet();
  }
  size_t poll(Completion* out, size_t capacity) {
    if (script_.by_hand_) attend();
    if (!script_.by_hand_ && !script_.stopped_) script_.all_by_itself(name_);
    return StripedEndpoint::poll(out, capacity);
  }

 protected:
  const StripedScript& script() const { return script_; }

 private:
  StripedScript& script_;
  const size_t name_;
};
static_assert(agent::Mending<StripedEnd> && agent::Unordered<StripedEnd>);

// Whether the next post of its end is to take this line: the one that was chosen, if it can.
bool StripedScript::on(const LineEnd& line) const {
  if (!by_hand_) return true;
  const uint8_t chosen = ways_[line.name_] & 1;
  return chosen == line.line_ || !ends_[chosen][line.name_]->met(0);
}

bool StripedScript::act(const Action& action) {
  LineEnd& line = *ends_[action.line][action.end];
  switch (action.verb) {
    case Verb::kStore:
      return line.store();
    case Verb::kComplete:
      return line.complete();
    case Verb::kLate:
      return line.arrive_late();
    case Verb::kBreak:
      return line.fail(action.index);
    case Verb::kGiveUp:
      return line.give_up();
    case Verb::kKill:
      line.kill();
      whole_[action.end]->attend();
      return true;
    case Verb::kGreet:
      return line.greet();
    case Verb::kHear:
      return hear(action.end);
    default:
      return false;
  }
}

bool StripedScript::hear(size_t end) {
  if (!mail_[end]) return false;
  const Mail mail = *mail_[end];
  mail_[end].reset();
  ends_[mail.line][end]->hear(mail.greeting);
  whole_[end]->agent::StripedEndpoint<LineEnd>::meet();
  return true;
}

void StripedScript::all_by_itself(size_t end) {
  if (whole_.size() < 2) return;
  (void)hear(end);
  for (auto& ends : ends_) {
    LineEnd& line = *ends[end];
    if (!mail_[1 - end]) (void)line.greet();
    while (line.store()) {
    }
    while (line.complete()) {
    }
  }
}

bool StripedScript::whole() const {
  for (uint8_t line = 0; line < kLines; ++line) {
    if (!dead_[line] && !(ends_[line][0]->met(0) && ends_[line][1]->met(0))) return false;
  }
  return true;
}

bool StripedScript::settled() const {
  for (const auto& ends : ends_) {
    for (const LineEnd* line : ends) {
      if (!line->met(0) || line->link_.era != ends_[0][0]->link_.era || !line->idle()) return false;
    }
  }
  return true;
}

void StripedScript::rebase() {
  base_ = ends_[0][0]->link_.era;
  mail_ = {};
  for (auto& ends : ends_) {
    for (LineEnd* line : ends) line->early_.reset();
  }
}

std::string StripedScript::state_of(size_t end) const {
  uint32_t era = 0;
  std::string out;
  for (const auto& ends : ends_) {
    const LineEnd& line = *ends[end];
    era = std::max(era, line.link_.era);
    out += line.failed_           ? " failed"
           : line.link_.met()     ? " met"
           : line.link_.seen != 0 ? " seen"
                                  : " new";
  }
  return "era " + std::to_string(era - base_) + out;
}

}  // namespace epfabric::test
