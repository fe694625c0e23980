// A model of a link whose network keeps the order and whose connections break (remote_mend.h,
// verbs_greeting.h): two ends, each with a pod that pushes a course, a proxy that is moved by
// turns, and an end of the connection with a completion queue. Greetings are lost, repeated, and
// come out of order. One completion is polled in a turn. With two lines the link uses one of them,
// and goes over to the other (standby_lines.h). mend_script.h and standby_script.h do the same with
// the real proxies.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include "action.h"
#include "mend_state.h"

namespace epfabric::test {

struct MendModel {
  using State = MendState;
  using End = State::End;
  using Op = State::Op;
  using Mend = State::Mend;
  using Greeting = State::Greeting;
  static constexpr uint8_t kMail = State::kMail, kMostRecords = State::kMostRecords,
                           kOps = State::kOps, kAnswer = State::kAnswer, kLines = State::kLines;

  Courses courses;
  uint8_t breaks = 1;
  MendFlaw flaw = MendFlaw::kNone;
  uint8_t lines = 1, kills = 0, hurries = 0;

  State initial() const {
    State out;
    out.breaks = breaks;
    out.kills = kills;
    out.hurries = hurries;
    return out;
  }
  static const char* fault_of(const State& state) { return text_of(state.fault); }
  static bool disturbs(const Action& action) {
    return action.verb == Verb::kBreak || action.verb == Verb::kKill ||
           (action.verb == Verb::kLeave && action.index > 0);
  }

  // All that was pushed is there, or no line is, so that each end loses the other, or the group
  // ended.
  bool done(const State& state) const {
    if (state.ended || (state.dead[0] && state.dead[1])) return true;
    for (size_t e = 0; e < 2; ++e) {
      const End &end = state.ends[e], &other = state.ends[1 - e];
      if (end.pushed != courses[e].size() || end.held || end.failed || !end.met() ||
          end.mend != Mend::kWhole || end.queued != 0 || end.late != 0)
        return false;
      for (size_t i = 0; i < courses[e].size(); ++i) {
        if (!complete(end, e, i) || end.ops[i] != Op::kCompleted) return false;
      }
      if (end.owes || end.ops[kAnswer] != (answers_one(e) ? Op::kCompleted : Op::kNone) ||
          other.taken != records(e) || !other.places.all_taken(courses[e]))
        return false;
    }
    return state.ends[0].generation == state.ends[1].generation &&
           state.ends[0].era == state.ends[1].era;
  }

  // As Replay and MendScript say it.
  std::string shown(const State& state) const {
    if (state.ended) return "it ended";
    std::string out;
    for (size_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      size_t completed = 0;
      while (completed < courses[e].size() && complete(end, e, completed)) ++completed;
      out += visible_of(signals(e, end.taken), completed, end.places) + std::to_string(end.era) +
             " " + std::to_string(end.generation) + " " + std::to_string(end.seen) + " " +
             std::to_string(end.acknowledged) + (end.failed ? " failed; " : " whole; ");
    }
    return out;
  }

  void actions(const State& state, Trace& out) const {
    if (state.ended) return;
    for (uint8_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      if (end.pushed < courses[e].size() && !end.held) out.push_back({Verb::kPush, e, 0});
      out.push_back({Verb::kTurn, e, 0});
      uint8_t undone = 0;
      for (const Op op : end.ops) undone += op == Op::kFlying;
      if (answers(state, e) && undone > 0) out.push_back({Verb::kStore, e, 0});
      if (!end.failed && first_flight(end) < kOps && end.ops[first_flight(end)] == Op::kDone)
        out.push_back({Verb::kAnswer, e, 0});
      if (end.late > 0) out.push_back({Verb::kLate, e, 0});
      const bool reached = state.reaches(e);
      const uint8_t under_way = reached ? undone : 0;
      for (uint8_t n = 0; n <= under_way && !end.failed; ++n) {
        if (state.breaks > 0) out.push_back({Verb::kBreak, e, n});
        if (undone > 0 && !reached) out.push_back({Verb::kGiveUp, e, n});
      }
      if (!end.failed && !end.met() && !state.dead[end.line()]) out.push_back({Verb::kGreet, e, 0});
      for (uint8_t i = 0; i < end.mails; ++i) out.push_back({Verb::kHear, e, i});
      if (lines > 1) add_of_lines(state, e, out);
    }
  }

  State apply(const State& before, const Action& action) const {
    State state = before;
    End& end = state.ends[action.end];
    switch (action.verb) {
      case Verb::kPush:
        end.pushed += 1;
        end.held = true;
        turn(state, action.end);
        break;
      case Verb::kTurn:
        turn(state, action.end);
        break;
      case Verb::kStore:
        for (uint8_t i = 0; i < kOps; ++i) {
          if (end.ops[i] != Op::kFlying) continue;
          arrive(state, action.end, i);
          end.ops[i] = Op::kDone;
          break;
        }
        break;
      case Verb::kAnswer: {
        const size_t first = first_flight(end);
        end.ops[first] = Op::kAnswered;
        end.queue[end.queued++] = static_cast<uint8_t>(State::kOk | first);
        break;
      }
      case Verb::kLate: {
        const uint8_t i = end.lates[0];
        std::rotate(end.lates.begin(), end.lates.begin() + 1, end.lates.end());
        end.lates[--end.late] = 0;
        arrive(state, static_cast<uint8_t>(1 - action.end), i, true);
        break;
      }
      case Verb::kBreak:
        state.breaks -= 1;
        [[fallthrough]];
      case Verb::kGiveUp:
        state.fail(action.end, action.index);
        break;
      case Verb::kKill:
        state.kills -= 1;
        state.kill(action.end, action.line);
        break;
      case Verb::kLeave:
        state.hurries -= action.index;
        end.leaving = end.called = true;
        end.meeting = false;
        break;
      case Verb::kGreet:
        state.greet(action.end, mails());
        break;
      case Verb::kHear:
        hear(state, action.end, action.index);
        break;
      default:
        break;
    }
    return state;
  }

 private:
  // It waits for its line no more: that is gone, or there were too many greetings lost. Of its NICs
  // an end keeps one.
  void add_of_lines(const State& state, uint8_t e, Trace& out) const {
    const End& end = state.ends[e];
    const bool left = !end.gone[0] && !end.gone[1], dead = state.dead[end.line()];
    if (end.meeting && left && (dead || state.hurries > 0))
      out.push_back({Verb::kLeave, e, static_cast<uint8_t>(dead ? 0 : 1)});
    for (uint8_t l = 0; l < kLines && left && state.kills > 0; ++l) {
      if (!state.dead[l]) out.push_back({Verb::kKill, e, 0, l});
    }
  }
  char command(size_t e, size_t i) const { return i == kAnswer ? 'a' : courses[e][i]; }
  bool is_record(size_t e, size_t i) const { return i == kAnswer || has_record(courses[e][i]); }
  bool answers_one(size_t e) const { return courses[1 - e].find('A') != std::string_view::npos; }
  uint8_t records(size_t e) const {
    return static_cast<uint8_t>(record_of(e, courses[e].size()) + (answers_one(e) ? 1 : 0));
  }
  // How many records stand before command i.
  uint8_t record_of(size_t e, size_t i) const {
    if (i == kAnswer) return 0;
    return static_cast<uint8_t>(
        std::count_if(courses[e].begin(), courses[e].begin() + static_cast<long>(i), has_record));
  }
  // Among the first records that end e took.
  size_t signals(size_t e, uint8_t taken) const {
    size_t out = 0;
    for (const char each : courses[1 - e]) {
      if (has_record(each) && taken-- == 0) break;
      out += has_signal(each) ? 1 : 0;
    }
    return out;
  }
  bool complete(const End& end, size_t e, size_t i) const {
    return courses[e][i] == 'A' ? end.answered : end.ops[i] == Op::kCompleted;
  }
  static size_t first_flight(const End& end) {
    size_t i = 0;
    while (i < kOps && !end.flies(i)) ++i;
    return i;
  }
  bool answers(const State& state, size_t e) const {
    return !state.ends[e].failed && state.reaches(e) &&
           (state.ends[1 - e].late == 0 || flaw == MendFlaw::kLateOnes);
  }
  // So many greetings are on their way to an end at once.
  uint8_t mails() const { return lines > 1 ? 1 : kMail; }

  // A write of end `from` is done at the other one, of its source's bytes now or, if it is late,
  // then.
  void arrive(State& state, uint8_t from, uint8_t i, bool late = false) const {
    End &end = state.ends[from], &other = state.ends[1 - from];
    if (has_bytes(command(from, i))) {
      if (other.places.at[i] == Place::kTaken) state.wrong(Fault::kAgain);
      if (!late && end.ops[i] == Op::kCompleted) state.wrong(Fault::kSource);
      if (other.places.at[i] == Place::kEmpty) other.places.at[i] = Place::kThere;
    }
    if (command(from, i) == 'H') apply_one(state, from, i);
    if (!is_record(from, i)) return;
    if (other.queued < kMostRecords)
      other.queue[other.queued++] = static_cast<uint8_t>(State::kRecord | i);
  }

  // An ATOMIC of end `from`; it says that what was before it is there.
  void apply_one(State& state, uint8_t from, uint8_t i) const {
    Places& places = state.ends[1 - from].places;
    if (++places.applied > 1) state.wrong(Fault::kApplied);
    state.wrong(places.take(courses[from], i));
  }

  void hear(State& state, uint8_t e, uint8_t index) const {
    End& end = state.ends[e];
    const Greeting greeting = end.mail[index];
    std::rotate(end.mail.begin() + index, end.mail.begin() + index + 1, end.mail.end());
    end.mail[--end.mails] = {};
    if (state.hear(e, greeting, flaw)) state.greet(e, mails());
  }

  void turn(State& state, uint8_t e) const {
    End& end = state.ends[e];
    if (end.gone[end.line()]) end.leaving = end.called = true;
    if (end.owes) answer(state, e);
    if (end.held && end.mend == Mend::kWhole && end.met() && !end.failed) {
      post(state, e, end.pushed - 1u);
      end.held = false;
    }
    if (end.queued > 0) poll(state, e);
    if (state.ended) return;
    if (std::exchange(end.called, false) || (end.failed && !end.noticed)) {
      end.noticed = true;
      end.meeting = false;
      end.mend = Mend::kBroken;
    }
    if (end.mend == Mend::kBroken) return sever(state, e);
    if (end.mend == Mend::kMeeting && end.met()) replay(state, e);
  }

  static void post(State& state, uint8_t e, size_t i) {
    state.ends[e].ops[i] = Op::kFlying;
    state.ends[e].consumed[i] = state.ends[e].taken;
  }

  // The peer says that it took so many records.
  void acknowledge(State& state, uint8_t e, uint8_t count) const {
    End& end = state.ends[e];
    const auto posted =
        record_of(e, end.pushed - (end.held ? 1u : 0u)) + (end.ops[kAnswer] != Op::kNone ? 1 : 0);
    if (count < end.proven || count > posted) return state.wrong(Fault::kCount);
    end.proven = count;
  }

  void poll(State& state, uint8_t e) const {
    End& end = state.ends[e];
    const uint8_t entry = end.queue[0];
    std::rotate(end.queue.begin(), end.queue.begin() + 1, end.queue.end());
    end.queue[--end.queued] = 0;
    const uint8_t i = entry & 0xf;
    switch (entry & 0xf0) {
      case State::kOk:
        return completed(state, e, i);
      case State::kFail:
        if (command(e, i) == 'H' && flaw == MendFlaw::kAddsDone) return completed(state, e, i);
        end.ops[i] = Op::kLost;
        state.ended = command(e, i) == 'H' && flaw != MendFlaw::kAddsAgain;
        return;
      case State::kEnded:
        end.drained = true;
        return;
      default:
        if (record_of(1u - e, i) != end.taken) return state.wrong(Fault::kOutOfOrder);
        end.taken += 1;
        acknowledge(state, e, state.ends[1 - e].consumed[i]);
        if (i == kAnswer) {
          end.answered = true;
          return note_drained(state, e);
        }
        state.wrong(end.places.take(courses[1u - e], i + 1u));
        if (courses[1u - e][i] != 'A') return;
        if (++end.places.applied > 1) state.wrong(Fault::kApplied);
        answer(state, e);
    }
  }
  // At once if it can be posted, or else in a later turn.
  static void answer(State& state, uint8_t e) {
    End& end = state.ends[e];
    end.owes = end.mend != Mend::kWhole || !end.met() || end.failed;
    if (!end.owes) post(state, e, kAnswer);
  }

  // A DRAIN completes for its pod when all before it has; an ATOMIC was applied then.
  void completed(State& state, uint8_t e, uint8_t i) const {
    if (command(e, i) == 'H' && state.ends[1 - e].places.applied == 0) state.wrong(Fault::kApplied);
    state.ends[e].ops[i] = Op::kCompleted;
    note_drained(state, e);
  }
  void note_drained(State& state, uint8_t e) const {
    for (size_t n = 0; n < courses[e].size(); ++n) {
      if (!complete(state.ends[e], e, n)) return;
      if (courses[e][n] == 'D') state.wrong(state.ends[1 - e].places.take(courses[e], n));
    }
  }

  void sever(State& state, uint8_t e) const {
    End& end = state.ends[e];
    if (!end.ending && end.seen != 0) {
      if (!end.failed) state.fail(e, 0);
      end.noticed = end.ending = true;
      if (flaw != MendFlaw::kLateOnes) {
        end.late = 0;
        end.lates = {};
      }
      end.queue[end.queued++] = State::kEnded;
    }
    const auto last = end.queue.begin() + end.queued;
    const bool own = std::any_of(end.queue.begin(), last,
                                 [](uint8_t entry) { return (entry & 0xf0) <= State::kFail; });
    if (end.seen != 0 && !end.drained && (flaw != MendFlaw::kUnpolled || own)) return;
    end.queued = 0;
    end.queue = {};
    state.remake(e, lines > 1, flaw == MendFlaw::kOwnNumber);
    end.mend = Mend::kMeeting;
  }

  void replay(State& state, uint8_t e) const {
    End& end = state.ends[e];
    acknowledge(state, e, flaw == MendFlaw::kBelated ? end.before : end.heard);
    bool taken = false;
    for (uint8_t i = kOps; i-- > 0;) {
      if (end.ops[i] != Op::kLost) continue;
      const bool record = is_record(e, i);
      taken = taken || (record && record_of(e, i) < end.proven);
      bool known = taken && (record || command(e, i) == 'W');
      if (flaw == MendFlaw::kNothingKnown) known = false;
      if (flaw == MendFlaw::kWritesAgain && !record) known = false;
      if (flaw == MendFlaw::kNothingAgain) known = true;
      if (known) {
        end.ops[i] = Op::kAnswered;
      } else {
        post(state, e, i);
      }
    }
    for (uint8_t i = 0; i < kOps; ++i) {
      if (end.ops[i] == Op::kAnswered) completed(state, e, i);
    }
    end.mend = Mend::kWhole;
  }
};

}  // namespace epfabric::test
