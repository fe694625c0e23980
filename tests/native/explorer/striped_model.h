// A model of a link over two lines that each keep the order and break (striped_mend.h): two ends,
// each with a pod that pushes a course whose only DRAIN is its last command. A line breaks, or goes
// for good; those that are used are made anew together, and the link goes on over the first one.
// One greeting at most is on its way to an end, and any may be lost. striped_script.h does the same
// with the real proxies.
#pragma once

#include <string>
#include <utility>

#include "action.h"
#include "striped_state.h"

namespace epfabric::test {

struct StripedModel {
  using State = StripedState;
  using Stage = State::Stage;
  using Mend = State::Mend;
  using End = State::End;
  using Line = State::Line;
  using Op = State::Op;
  static constexpr uint8_t kLines = State::kLines, kOps = State::kOps, kCredit = State::kCredit;

  Courses courses;
  uint8_t breaks = 1, kills = 0;
  StripedFlaw flaw = StripedFlaw::kNone;

  State initial() const {
    State out;
    out.breaks = breaks;
    out.kills = kills;
    return out;
  }
  static const char* fault_of(const State& state) { return text_of(state.fault); }
  static bool disturbs(const Action& action) {
    return action.verb == Verb::kBreak || action.verb == Verb::kKill;
  }

  bool done(const State& state) const {
    for (size_t e = 0; e < 2; ++e) {
      const End &end = state.ends[e], &other = state.ends[1 - e];
      if (end.mend != Mend::kWhole || end.broken || end.shut || end.era != other.era ||
          completed(end, e) != courses[e].size() || other.taken != end.posted ||
          !other.places.all_taken(courses[e]))
        return false;
      for (const Op& op : end.ops) {
        if ((op.stage != Stage::kNone && op.stage != Stage::kCompleted) || op.queued || op.late)
          return false;
      }
      for (uint8_t l = 0; l < kLines; ++l) {
        if (!state.dead[l] && !end.lines[l].met()) return false;
      }
    }
    return true;
  }

  // As Replay and StripedScript say it.
  std::string shown(const State& state) const {
    std::string out;
    for (size_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      out +=
          visible_of(end.signals, completed(end, e), end.places) + "era " + std::to_string(end.era);
      for (const Line& line : end.lines)
        out += line.failed ? " failed" : line.met() ? " met" : line.seen ? " seen" : " new";
      out += "; ";
    }
    return out;
  }

  void actions(const State& state, Trace& out) const {
    for (uint8_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      if (end.pushed < courses[e].size() && !end.held) add_turns(end, Verb::kPush, e, out);
      add_turns(end, Verb::kTurn, e, out);
      if (end.mail.there) out.push_back({Verb::kHear, e, 0});
      for (uint8_t l = 0; l < kLines; ++l) add_of_line(state, e, l, out);
    }
  }

  State apply(const State& before, const Action& action) const {
    State state = before;
    const uint8_t e = action.end, l = action.line;
    End &end = state.ends[e], &other = state.ends[1 - e];
    switch (action.verb) {
      case Verb::kPush:
        end.pushed += 1;
        end.held = true;
        turn(state, e, action.index);
        break;
      case Verb::kTurn:
        turn(state, e, action.index);
        break;
      case Verb::kStore:
        store(state, e,
              State::first_of(end, l, [](const Op& op) { return op.stage == Stage::kFlying; }));
        break;
      case Verb::kComplete:
        State::complete(end, State::first_of(end, l, [](const Op& op) { return op.flies(); }));
        turn(state, e, 0);
        break;
      case Verb::kLate:
        store(state, 1 - e, State::first_of(other, l, [](const Op& op) { return op.late; }));
        break;
      case Verb::kBreak:
        state.breaks -= 1;
        [[fallthrough]];
      case Verb::kGiveUp:
        fail(end, l, action.index);
        break;
      case Verb::kKill:
        state.kills -= 1;
        state.dead[l] = true;
        if (!end.lines[l].failed) fail(end, l, 0);
        end.lines[l].gone = true;
        if (end.lines[l].up) end.broken = end.shut = true;
        remake_alone(state, e);
        break;
      case Verb::kGreet:
        greet(state, e, l);
        break;
      case Verb::kHear:
        hear(state, e);
        break;
      default:
        break;
    }
    return state;
  }

 private:
  // Of the first commands, as many as have completed.
  size_t completed(const End& end, size_t e) const {
    size_t i = 0;
    while (i < end.pushed && !(end.held && i + 1u == end.pushed) &&
           (courses[e][i] == 'D' ? end.drained : end.ops[i].stage == Stage::kCompleted))
      ++i;
    return i;
  }
  // With each way in which the turn's posts may choose their lines.
  void add_turns(const End& end, Verb verb, uint8_t e, Trace& out) const {
    auto posts = (verb == Verb::kPush || end.held ? 1u : 0u) + (end.owes() ? 1u : 0u);
    if (end.mend == Mend::kMeeting) {
      posts = static_cast<unsigned>(std::count_if(
          end.ops.begin(), end.ops.end(), [](const Op& op) { return op.stage == Stage::kLost; }));
    }
    const bool both = end.lines[0].met() && end.lines[1].met() && end.mend != Mend::kBroken;
    for (unsigned ways = 0; ways < (both ? 1u << posts : 1u); ++ways)
      out.push_back({verb, e, static_cast<uint8_t>(ways)});
  }
  void add_of_line(const State& state, uint8_t e, uint8_t l, Trace& out) const {
    const End& end = state.ends[e];
    const Line& line = end.lines[l];
    const auto late = [l](const Op& op) { return op.line == l && op.late; };
    const auto& theirs = state.ends[1 - e].ops;
    if (std::any_of(theirs.begin(), theirs.end(), late)) out.push_back({Verb::kLate, e, 0, l});
    if (state.kills > 0 && !state.dead[l]) out.push_back({Verb::kKill, e, 0, l});
    if (line.failed) return;
    uint8_t undone = 0;
    for (const Op& op : end.ops) undone += op.line == l && op.stage == Stage::kFlying;
    const bool reached = state.reaches(e, l);
    if (reached && undone > 0) out.push_back({Verb::kStore, e, 0, l});
    const uint8_t first = State::first_of(end, l, [](const Op& op) { return op.flies(); });
    if (first < kOps && end.ops[first].stage == Stage::kDone)
      out.push_back({Verb::kComplete, e, 0, l});
    for (uint8_t n = 0; n <= (reached ? undone : 0) && state.breaks > 0; ++n)
      out.push_back({Verb::kBreak, e, n, l});
    if (undone > 0 && !reached) out.push_back({Verb::kGiveUp, e, 0, l});
    if (!line.met() && !state.dead[l]) out.push_back({Verb::kGreet, e, 0, l});
  }

  // A write of end `from` is done at the other one, late or not.
  void store(State& state, size_t from, uint8_t i) const {
    Op& op = state.ends[from].ops[i];
    if (i < kCredit && has_bytes(courses[from][i])) {
      Place& place = state.ends[1 - from].places.at[i];
      if (place == Place::kTaken) state.wrong(Fault::kAgain);
      if (!op.late && op.stage == Stage::kCompleted) state.wrong(Fault::kSource);
      if (place == Place::kEmpty) place = Place::kThere;
    }
    if (op.stage == Stage::kFlying) op.stage = Stage::kDone;
    op.late = false;
    op.queued = true;
  }

  void fail(End& end, uint8_t l, uint8_t arriving) const {
    if (flaw == StripedFlaw::kEarly && !end.counted) {
      end.early = end.came;
      end.counted = true;
    }
    end.lines[l].broke = true;
    State::flush(end, l, arriving);
  }
  void greet(State& state, size_t e, uint8_t l) const {
    const Line& line = state.ends[e].lines[l];
    if (state.dead[l]) return;
    State::Greeting& mail = state.ends[1 - e].mail;
    mail = {true, l, state.ends[e].era, line.generation, line.seen, line.acknowledged, line.told};
    if (flaw == StripedFlaw::kOwnLine) mail.told[1 - l] = 0;
  }
  void hear(State& state, size_t e) const {
    End& end = state.ends[e];
    const State::Greeting greeting = std::exchange(end.mail, {});
    const uint8_t l = greeting.line;
    Line& line = end.lines[l];
    if (line.failed) return;
    const bool across = flaw == StripedFlaw::kAcross;
    const bool later = greeting.era > end.era && !across;
    if ((greeting.era < end.era && !across) || (!later && greeting.generation < line.generation))
      return;
    if (later || (greeting.generation > line.generation && line.seen)) {
      if (later && flaw != StripedFlaw::kUnfollowed) line.later = greeting.era;
      return fail(end, l, 0);
    }
    if (greeting.generation > line.generation) line.acknowledged = false;
    line.generation = greeting.generation;
    if (greeting.seen) line.acknowledged = true;
    const bool answer = !line.seen || !greeting.acknowledged;
    if (!line.seen) {
      line.seen = true;
      line.later = 0;
      if (!end.up()) line.heard = greeting.told;
    }
    if (answer) greet(state, e, l);
    if (line.met() && end.era > 0) State::join(end, line);
  }
  void turn(State& state, size_t e, uint8_t ways) const {
    End& end = state.ends[e];
    if (end.owes() && State::post(end, kCredit, ways, end.taken)) end.told = end.taken;
    if (end.held) push(end, e, ways);
    remake_alone(state, e);
    poll(state, e);
    notice(end);
    if (end.mend == Mend::kBroken) {
      sever(state, e);
    } else if (end.mend == Mend::kMeeting && end.up()) {
      replay(end, e, ways);
    }
    for (size_t i = completed(end, e); i > 0; --i) {
      if (courses[e][i - 1] == 'D') state.wrong(state.ends[1 - e].places.take(courses[e], i - 1));
    }
  }

  void push(End& end, size_t e, uint8_t& ways) const {
    const uint8_t i = end.pushed - 1u;
    if (courses[e][i] == 'D' && end.acknowledged >= end.posted) {
      end.drained = true;
      end.held = false;
      return;
    }
    if (end.mend != Mend::kWhole || !State::post(end, i, ways, said(end, e, i))) return;
    end.posted += 1;
    end.held = false;
    if (has_signal(courses[e][i])) end.told = end.taken;
  }
  // What operation i tells of what was taken.
  uint8_t said(const End& end, size_t e, uint8_t i) const {
    return i == kCredit || has_signal(courses[e][i]) ? end.taken : 0;
  }
  void poll(State& state, size_t e) const {
    End &end = state.ends[e], &other = state.ends[1 - e];
    for (Op& op : end.ops) {
      if (op.stage == Stage::kFailing) op.stage = Stage::kLost;
    }
    for (uint8_t l = 0; l < kLines; ++l) {
      const auto queued = [](const Op& op) { return op.queued; };
      for (uint8_t i = State::first_of(other, l, queued); i < kOps;
           i = State::first_of(other, l, queued)) {
        other.ops[i].queued = false;
        end.came[l] += 1;
        take(state, e, i);
        State::forget(other.ops[i]);
      }
      if (end.lines[l].ending) end.lines[l].drained = true;
    }
  }
  void take(State& state, size_t e, uint8_t i) const {
    End &end = state.ends[e], &other = state.ends[1 - e];
    if (i == kCredit) return acknowledge(state, e, std::exchange(other.ops[i].says, uint8_t{0}));
    end.arrived |= static_cast<uint8_t>(1u << i);
    while (end.taken < kMostCommands && (end.arrived >> end.taken & 1) != 0) {
      const uint8_t next = end.taken++;
      const char command = courses[1 - e][next];
      if (command == 'D') end.asked = end.taken;
      if (!has_signal(command)) continue;
      end.signals += 1;
      acknowledge(state, e, std::exchange(other.ops[next].says, uint8_t{0}));
      state.wrong(end.places.take(courses[1 - e], next + 1u));
    }
  }
  // What was said before is no fault.
  void acknowledge(State& state, size_t e, uint8_t taken) const {
    End& end = state.ends[e];
    if (taken < end.acknowledged) return;
    if (taken > end.posted) return state.wrong(Fault::kCount);
    end.acknowledged = taken;
    const size_t last = end.pushed - 1u;
    if (end.pushed > 0 && !end.held && courses[e][last] == 'D' && taken >= last) end.drained = true;
  }

  // A line that is out breaks no other, unless the peer is in a later era.
  static void notice(End& end) {
    const bool severing = end.mend == Mend::kBroken;
    for (Line& line : end.lines) {
      if (!std::exchange(line.broke, false) || severing) continue;
      if (!line.up && line.later <= end.era) {
        line.alone = true;
      } else {
        end.broken = true;
      }
    }
    if (std::exchange(end.broken, false)) end.mend = Mend::kBroken;
  }
  void remake(End& end, Line& line) const {
    line.up = line.alone = false;
    if (line.gone) return;
    line.generation = std::min<uint8_t>(line.generation + 1u, State::kEndless);
    line.told = flaw == StripedFlaw::kEarly && end.counted ? end.early : end.came;
    line.seen = line.acknowledged = line.failed = line.ending = line.drained = false;
    line.later = line.later > end.era ? line.later : 0;
  }
  void remake_alone(State& state, size_t e) const {
    End& end = state.ends[e];
    for (uint8_t l = 0; l < kLines && end.mend != Mend::kBroken; ++l) {
      if (!end.lines[l].alone) continue;
      state.begin_to_end(e, l);
      if (!end.lines[l].seen || end.lines[l].drained) remake(end, end.lines[l]);
    }
  }
  void sever(State& state, size_t e) const {
    End& end = state.ends[e];
    for (uint8_t l = 0; l < kLines; ++l) state.begin_to_end(e, l);
    const bool drained = std::all_of(end.lines.begin(), end.lines.end(),
                                     [](const Line& line) { return !line.seen || line.drained; });
    const bool failing = std::any_of(end.ops.begin(), end.ops.end(), [](const Op& op) {
      return op.stage == Stage::kFailing || op.flies();
    });
    if (!drained || failing) return;
    end.era += 1;
    end.mend = Mend::kMeeting;
    end.shut = false;
    for (Line& line : end.lines) {
      remake(end, line);
      line.heard = {};
    }
    end.early = {};
    end.counted = false;
  }

  // What the peer has is done; the rest is sent again.
  void replay(End& end, size_t e, uint8_t ways) const {
    std::array<bool, kOps> lost{};
    for (uint8_t i = 0; i < kOps; ++i) {
      const Op& op = end.ops[i];
      if (op.stage != Stage::kLost) continue;
      bool there = op.number < end.sent[op.line];
      if (flaw == StripedFlaw::kNothingThere) there = false;
      if (flaw == StripedFlaw::kAllThere) there = true;
      if (there) State::complete(end, i);
      lost[i] = !there;
    }
    for (uint8_t i = 0; i < kOps; ++i) {
      if (!lost[i]) continue;
      State::post(end, i, ways, said(end, e, i));
      if (i == kCredit) end.told = end.taken;
    }
    end.mend = Mend::kWhole;
  }
};

}  // namespace epfabric::test
