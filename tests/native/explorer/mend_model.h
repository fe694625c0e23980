// A model of a link whose network keeps the order and whose connections break (remote_mend.h,
// verbs_greeting.h): two ends, each with a pod that pushes a course, a proxy that is moved by
// turns, and an end of the connection with a completion queue. Greetings are lost, repeated, and
// come out of order. One completion is polled in a turn. mend_script.h does the same with the real
// proxies.
#pragma once

#include <algorithm>
#include <string>

#include "action.h"
#include "course.h"

namespace epfabric::test {

// One thing that the protocol rests on, left out.
enum class MendFlaw : uint8_t {
  kNone,
  kNothingKnown,   // all is sent again, whatever the peer has taken
  kWritesAgain,    // writes are sent again although a record behind them was taken
  kNothingAgain,   // what failed counts as done
  kAnyGeneration,  // greetings of older connections count
  kUnpolled,       // what the old connection brought is not polled before the next one is made
  kLateOnes,       // the old connection's packets arrive beside the next one
  kCount,
};

struct MendModel {
  enum class Op : uint8_t { kNone, kFlying, kDone, kAnswered, kFailing, kLost, kCompleted };
  enum class Mend : uint8_t { kWhole, kBroken, kMeeting };
  struct Greeting {
    uint8_t generation, seen, acknowledged, taken;
    bool operator==(const Greeting&) const = default;
  };
  static constexpr uint8_t kMail = 2;
  static constexpr uint8_t kMostRecords = 2 * kMostCommands + 1;  // more come by a flaw alone
  static constexpr uint8_t kQueue = kMostRecords + kMostCommands + 1;
  // What stands in a completion queue: what it is, and the command that it is about.
  enum Entry : uint8_t { kOk = 0x00, kFail = 0x10, kRecord = 0x20, kEnded = 0x30 };

  struct End {
    uint8_t pushed = 0;
    bool held = false;  // the last one is not posted yet
    std::array<Op, kMostCommands> ops{};
    std::array<uint8_t, kMostCommands> consumed{};  // what their records say was taken
    Places places;
    uint8_t taken = 0;       // records
    uint8_t told = 0;        // of these, when the connection was made
    uint8_t heard = 0;       // what the peer told
    uint8_t proven = 0;      // records that the peer is known to have taken
    uint8_t generation = 1;  // three as verbs_greeting.h has them
    uint8_t seen = 1;
    uint8_t acknowledged = 1;
    bool failed = false, noticed = true, ending = false, drained = false;
    Mend mend = Mend::kWhole;
    uint8_t queued = 0;
    std::array<uint8_t, kQueue> queue{};
    uint8_t late = 0;
    std::array<uint8_t, kMostCommands> lates{};
    uint8_t mails = 0;
    std::array<Greeting, kMail> mail{};
    bool operator==(const End&) const = default;

    bool met() const { return seen != 0 && acknowledged == generation; }
    bool flies(size_t i) const { return ops[i] == Op::kFlying || ops[i] == Op::kDone; }
  };
  struct State {
    std::array<End, 2> ends;
    uint8_t breaks = 0;
    Fault fault = Fault::kNone;
  };

  Courses courses;
  uint8_t breaks = 1;
  MendFlaw flaw = MendFlaw::kNone;

  State initial() const {
    State out;
    out.breaks = breaks;
    return out;
  }
  static const char* fault_of(const State& state) { return text_of(state.fault); }
  static bool disturbs(const Action& action) { return action.verb == Verb::kBreak; }

  bool done(const State& state) const {
    for (size_t e = 0; e < 2; ++e) {
      const End &end = state.ends[e], &other = state.ends[1 - e];
      if (end.pushed != courses[e].size() || end.held || end.failed || !end.met() ||
          end.mend != Mend::kWhole || end.queued != 0 || end.late != 0)
        return false;
      for (size_t i = 0; i < courses[e].size(); ++i) {
        if (end.ops[i] != Op::kCompleted) return false;
      }
      if (other.taken != records(e) || !other.places.all_taken(courses[e])) return false;
    }
    return state.ends[0].generation == state.ends[1].generation;
  }

  // As Replay and MendScript say it.
  std::string shown(const State& state) const {
    std::string out;
    for (size_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      size_t completed = 0;
      while (completed < courses[e].size() && end.ops[completed] == Op::kCompleted) ++completed;
      out += visible_of(end.taken, completed, end.places) + std::to_string(end.generation) + " " +
             std::to_string(end.seen) + " " + std::to_string(end.acknowledged) +
             (end.failed ? " failed; " : " whole; ");
    }
    return out;
  }

  void actions(const State& state, Trace& out) const {
    for (uint8_t e = 0; e < 2; ++e) {
      const End &end = state.ends[e], &other = state.ends[1 - e];
      if (end.pushed < courses[e].size() && !end.held) out.push_back({Verb::kPush, e, 0});
      out.push_back({Verb::kTurn, e, 0});
      uint8_t undone = 0;
      for (size_t i = 0; i < courses[e].size(); ++i) undone += end.ops[i] == Op::kFlying;
      if (answers(end, other) && undone > 0) out.push_back({Verb::kStore, e, 0});
      if (!end.failed && first_flight(e, end) < kMostCommands &&
          end.ops[first_flight(e, end)] == Op::kDone)
        out.push_back({Verb::kAnswer, e, 0});
      if (end.late > 0) out.push_back({Verb::kLate, e, 0});
      const uint8_t under_way = reaches(end, other) ? undone : 0;
      for (uint8_t n = 0; n <= under_way && !end.failed; ++n) {
        if (state.breaks > 0) out.push_back({Verb::kBreak, e, n});
        if (undone > 0 && !reaches(end, other)) out.push_back({Verb::kGiveUp, e, n});
      }
      if (!end.failed && !end.met()) out.push_back({Verb::kGreet, e, 0});
      for (uint8_t i = 0; i < end.mails; ++i) out.push_back({Verb::kHear, e, i});
    }
  }

  State apply(const State& before, const Action& action) const {
    State state = before;
    End &end = state.ends[action.end], &other = state.ends[1 - action.end];
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
        for (uint8_t i = 0; i < kMostCommands; ++i) {
          if (end.ops[i] != Op::kFlying) continue;
          arrive(state, action.end, i);
          end.ops[i] = Op::kDone;
          break;
        }
        break;
      case Verb::kAnswer: {
        const size_t first = first_flight(action.end, end);
        end.ops[first] = Op::kAnswered;
        end.queue[end.queued++] = static_cast<uint8_t>(kOk | first);
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
        fail(end, other, action.index);
        break;
      case Verb::kGreet:
        greet(end, other);
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
  uint8_t records(size_t e) const {
    return static_cast<uint8_t>(std::count_if(courses[e].begin(), courses[e].end(), has_signal));
  }
  // How many records stand before command i.
  uint8_t record_of(size_t e, size_t i) const {
    return static_cast<uint8_t>(
        std::count_if(courses[e].begin(), courses[e].begin() + static_cast<long>(i), has_signal));
  }
  size_t first_flight(size_t e, const End& end) const {
    size_t i = 0;
    while (i < courses[e].size() && !end.flies(i)) ++i;
    return i < courses[e].size() ? i : kMostCommands;
  }
  // Whether what this end sent reaches the peer's end of the same connection.
  static bool reaches(const End& end, const End& other) {
    return !other.ending && other.seen == end.generation;
  }
  bool answers(const End& end, const End& other) const {
    return !end.failed && reaches(end, other) && (other.late == 0 || flaw == MendFlaw::kLateOnes);
  }

  void wrong(State& state, Fault fault) const {
    if (state.fault == Fault::kNone) state.fault = fault;
  }

  // A write of end `from` is done at the other one, of its source's bytes now or, if it is late,
  // then.
  void arrive(State& state, uint8_t from, uint8_t i, bool late = false) const {
    End &end = state.ends[from], &other = state.ends[1 - from];
    if (has_bytes(courses[from][i])) {
      if (other.places.at[i] == Place::kTaken) wrong(state, Fault::kAgain);
      if (!late && end.ops[i] == Op::kCompleted) wrong(state, Fault::kSource);
      if (other.places.at[i] == Place::kEmpty) other.places.at[i] = Place::kThere;
    }
    if (!has_signal(courses[from][i])) return;
    if (other.queued < kMostRecords)
      other.queue[other.queued++] = static_cast<uint8_t>(kRecord | i);
  }

  // All that is under way fails; the first `arriving` of what is not done arrive later.
  static void fail(End& end, End& other, uint8_t arriving) {
    end.failed = true;
    end.noticed = false;
    end.acknowledged = 0;
    for (uint8_t i = 0; i < kMostCommands; ++i) {
      if (!end.flies(i)) continue;
      if (end.ops[i] == Op::kFlying && arriving > 0 && other.late < kMostCommands) {
        arriving -= 1;
        other.lates[other.late++] = i;
      }
      end.ops[i] = Op::kFailing;
      end.queue[end.queued++] = static_cast<uint8_t>(kFail | i);
    }
  }

  static void greet(const End& end, End& other) {
    const Greeting greeting{end.generation, end.seen, end.acknowledged, end.told};
    const auto last = other.mail.begin() + other.mails;
    if (std::find(other.mail.begin(), last, greeting) != last) return;
    if (other.mails == kMail) {  // the oldest one is lost
      std::rotate(other.mail.begin(), other.mail.begin() + 1, other.mail.end());
      other.mails -= 1;
    }
    other.mail[other.mails++] = greeting;
  }

  void hear(State& state, uint8_t e, uint8_t index) const {
    End &end = state.ends[e], &other = state.ends[1 - e];
    const Greeting greeting = end.mail[index];
    std::rotate(end.mail.begin() + index, end.mail.begin() + index + 1, end.mail.end());
    end.mail[--end.mails] = {};
    if (end.failed) return;
    if (greeting.generation < end.generation && flaw != MendFlaw::kAnyGeneration) return;
    if (greeting.generation > end.generation && end.seen != 0) return fail(end, other, 0);
    if (greeting.generation > end.generation) {
      end.generation = greeting.generation;
      end.seen = end.acknowledged = 0;
    }
    if (greeting.seen == end.generation) end.acknowledged = greeting.seen;
    if (end.seen == 0) {
      end.seen = greeting.generation;
      end.heard = greeting.taken;
    } else if (greeting.acknowledged == greeting.generation) {
      return;
    }
    greet(end, other);
  }

  void turn(State& state, uint8_t e) const {
    End& end = state.ends[e];
    if (end.held && end.mend == Mend::kWhole && end.met() && !end.failed) {
      post(state, e, end.pushed - 1u);
      end.held = false;
    }
    if (end.queued > 0) poll(state, e);
    if (end.failed && !end.noticed) {
      end.noticed = true;
      end.mend = Mend::kBroken;
    }
    if (end.mend == Mend::kBroken) return sever(end);
    if (end.mend == Mend::kMeeting && end.met()) replay(state, e);
  }

  static void post(State& state, uint8_t e, size_t i) {
    state.ends[e].ops[i] = Op::kFlying;
    state.ends[e].consumed[i] = state.ends[e].taken;
  }

  // The peer says that it took so many records.
  void acknowledge(State& state, uint8_t e, uint8_t count) const {
    End& end = state.ends[e];
    const uint8_t posted = record_of(e, end.pushed - (end.held ? 1u : 0u));
    if (count < end.proven || count > posted) return wrong(state, Fault::kCount);
    end.proven = count;
  }

  void poll(State& state, uint8_t e) const {
    End& end = state.ends[e];
    const uint8_t entry = end.queue[0];
    std::rotate(end.queue.begin(), end.queue.begin() + 1, end.queue.end());
    end.queue[--end.queued] = 0;
    const uint8_t i = entry & 0xf;
    switch (entry & 0xf0) {
      case kOk:
        return complete(state, e, i);
      case kFail:
        end.ops[i] = Op::kLost;
        return;
      case kEnded:
        end.drained = true;
        return;
      default:
        if (record_of(1u - e, i) != end.taken) return wrong(state, Fault::kOutOfOrder);
        end.taken += 1;
        acknowledge(state, e, state.ends[1 - e].consumed[i]);
        wrong(state, end.places.take(courses[1u - e], i + 1u));
    }
  }

  // A DRAIN completes for its pod when all before it has.
  void complete(State& state, uint8_t e, uint8_t i) const {
    state.ends[e].ops[i] = Op::kCompleted;
    for (size_t n = 0; n < courses[e].size(); ++n) {
      if (state.ends[e].ops[n] != Op::kCompleted) return;
      if (courses[e][n] == 'D') wrong(state, state.ends[1 - e].places.take(courses[e], n));
    }
  }

  void sever(End& end) const {
    if (!end.ending && end.seen != 0) {
      end.ending = true;
      if (flaw != MendFlaw::kLateOnes) {
        end.late = 0;
        end.lates = {};
      }
      end.queue[end.queued++] = kEnded;
    }
    const auto last = end.queue.begin() + end.queued;
    const bool own =
        std::any_of(end.queue.begin(), last, [](uint8_t entry) { return (entry & 0xf0) <= kFail; });
    if (end.seen != 0 && !end.drained && (flaw != MendFlaw::kUnpolled || own)) return;
    end.queued = 0;
    end.queue = {};
    end.generation += 1;
    end.seen = end.acknowledged = 0;
    end.told = end.taken;
    end.failed = end.ending = end.drained = false;
    end.mend = Mend::kMeeting;
  }

  void replay(State& state, uint8_t e) const {
    End& end = state.ends[e];
    acknowledge(state, e, end.heard);
    bool taken = false;
    for (size_t i = courses[e].size(); i-- > 0;) {
      if (end.ops[i] != Op::kLost) continue;
      const bool record = has_signal(courses[e][i]);
      taken = taken || (record && record_of(e, i) < end.proven);
      bool known = taken && (record || courses[e][i] == 'W');
      if (flaw == MendFlaw::kNothingKnown) known = false;
      if (flaw == MendFlaw::kWritesAgain && !record) known = false;
      if (flaw == MendFlaw::kNothingAgain) known = true;
      if (known) {
        end.ops[i] = Op::kAnswered;
      } else {
        post(state, e, i);
      }
    }
    for (uint8_t i = 0; i < courses[e].size(); ++i) {
      if (end.ops[i] == Op::kAnswered) complete(state, e, i);
    }
    end.mend = Mend::kWhole;
  }
};

}  // namespace epfabric::test
