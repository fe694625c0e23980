// A model of a link over a network that keeps no order (gate.h, remote_gate.h): two ends, each with
// a pod that pushes a course whose only DRAIN is its last command. Each operation is stored, then
// announced, once or twice, and completes, at times of its own; of credits, storing means nothing.
// gate_script.h does the same with the real proxies.
#pragma once

#include <algorithm>
#include <string>

#include "action.h"
#include "course.h"

namespace epfabric::test {

// One thing that the protocol rests on, left out.
enum class GateFlaw : uint8_t {
  kNone,
  kAtOnce,        // a record is taken although an earlier sequence is missing
  kTwice,         // what arrives twice counts as the one that is awaited
  kNoWrap,        // sequences are compared as if they never wrapped
  kUnasked,       // an ask is not answered
  kAtCompletion,  // a DRAIN waits for completions alone
};

struct GateModel {
  static constexpr uint8_t kMostOps = 6;
  static constexpr uint8_t kMostCredits = 2;
  static constexpr uint8_t kCredits = 8;  // their indices begin here
  enum Bit : uint8_t { kPosted = 1, kStored = 2, kAnnounced = 4, kRepeated = 8, kCompleted = 16 };
  static constexpr uint8_t kWhole = kPosted | kStored | kAnnounced | kCompleted;

  struct End {
    uint8_t pushed = 0, posted = 0, credits = 0;
    std::array<uint8_t, kMostOps> ops{};                     // bits
    std::array<uint8_t, kMostOps> consumed{};                // what their records say was taken
    std::array<uint8_t, kMostCredits> credit{}, credited{};  // bits, what they say
    uint8_t acknowledged = 0;
    uint8_t arrived = 0;  // a bit for each
    uint8_t taken = 0, told = 0, asked = 0;
    bool crediting = false;
    bool drained = false;  // its DRAIN
    uint8_t signals = 0;
    Places places;
  };
  struct State {
    std::array<End, 2> ends;
    uint8_t repeats = 0;
    Fault fault = Fault::kNone;
  };
  // What a turn finds in the completion queue: nothing, or what act() says.
  struct Event {
    enum : uint8_t { kNothing, kArrival, kCredit, kCompletion } kind = kNothing;
    uint8_t index = 0;
  };

  Courses courses;
  uint8_t repeats = 1;
  GateFlaw flaw = GateFlaw::kNone;
  uint16_t first = 0;  // sequence

  State initial() const {
    State out;
    out.repeats = repeats;
    return out;
  }
  static const char* fault_of(const State& state) { return text_of(state.fault); }
  static bool disturbs(const Action&) { return false; }  // it may happen that nothing is repeated

  bool done(const State& state) const {
    for (size_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      if (completed(end, e) != courses[e].size()) return false;
      for (uint8_t i = 0; i < end.posted; ++i) {
        if ((end.ops[i] & kWhole) != kWhole) return false;
      }
      for (uint8_t i = 0; i < end.credits; ++i) {
        if ((end.credit[i] & kWhole) != kWhole) return false;
      }
      const End& other = state.ends[1 - e];
      const auto signals = std::count_if(courses[e].begin(), courses[e].end(), has_signal);
      if (other.signals != signals || other.taken != end.posted) return false;
    }
    return true;
  }

  // As Replay and GateScript say it.
  std::string shown(const State& state) const {
    std::string out;
    for (size_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      out += visible_of(end.signals, completed(end, e), end.places) + std::to_string(end.posted) +
             " posted, " + std::to_string(end.credits) + " credits; ";
    }
    return out;
  }

  void actions(const State& state, Trace& out) const {
    for (uint8_t e = 0; e < 2; ++e) {
      const End& end = state.ends[e];
      if (end.pushed < courses[e].size()) out.push_back({Verb::kPush, e, 0});
      out.push_back({Verb::kTurn, e, 0});
      for (uint8_t i = 0; i < end.posted; ++i) add(state, e, i, end.ops[i], out);
      for (uint8_t i = 0; i < end.credits; ++i)
        add(state, e, static_cast<uint8_t>(kCredits + i), end.credit[i], out);
    }
  }

  State apply(const State& before, const Action& action) const {
    State state = before;
    const uint8_t e = action.end;
    const bool credit = action.index >= kCredits;
    const uint8_t i = credit ? static_cast<uint8_t>(action.index - kCredits) : action.index;
    uint8_t& bits = credit ? state.ends[e].credit[i] : state.ends[e].ops[i];
    switch (action.verb) {
      case Verb::kPush:
        turn(state, e, {}, true);
        break;
      case Verb::kTurn:
        turn(state, e, {});
        break;
      case Verb::kStore:
        bits |= kStored;
        store(state, e, i);
        break;
      case Verb::kAnnounce: {
        const bool again = (bits & kAnnounced) != 0;
        state.repeats -= again ? 1 : 0;
        bits |= again ? kRepeated : kAnnounced;
        turn(state, 1 - e, {credit ? Event::kCredit : Event::kArrival, i});
        break;
      }
      case Verb::kComplete:
        bits |= kCompleted;
        turn(state, e, {Event::kCompletion, action.index});
        break;
      default:
        break;
    }
    return state;
  }

 private:
  void add(const State& state, uint8_t e, uint8_t index, uint8_t bits, Trace& out) const {
    if ((bits & kStored) == 0) out.push_back({Verb::kStore, e, index});
    const bool again = (bits & kAnnounced) != 0;
    if ((bits & kStored) != 0 && (!again || (state.repeats > 0 && (bits & kRepeated) == 0)))
      out.push_back({Verb::kAnnounce, e, index});
    if ((bits & kCompleted) == 0) out.push_back({Verb::kComplete, e, index});
  }
  static void wrong(State& state, Fault fault) {
    if (state.fault == Fault::kNone) state.fault = fault;
  }

  // An operation is a WRITE's bytes, a signal's record, or a DRAIN's ask.
  static uint8_t ops_of(char command) { return command == 'S' ? 2 : 1; }
  uint8_t first_op(size_t e, size_t command) const {
    uint8_t out = 0;
    for (size_t i = 0; i < command; ++i) out += ops_of(courses[e][i]);
    return out;
  }
  size_t command_of(size_t e, uint8_t op) const {
    size_t i = 0;
    while (op >= first_op(e, i + 1)) ++i;
    return i;
  }
  bool is_record(size_t e, uint8_t op) const {
    const size_t command = command_of(e, op);
    return courses[e][command] == 'N' || (courses[e][command] == 'S' && op > first_op(e, command));
  }

  // Of the first commands, as many as have completed.
  size_t completed(const End& end, size_t e) const {
    size_t i = 0;
    for (; i < end.pushed; ++i) {
      bool whole = courses[e][i] != 'D' || end.drained;
      for (uint8_t op = first_op(e, i); op < first_op(e, i + 1) && courses[e][i] != 'D'; ++op)
        whole = whole && (end.ops[op] & kCompleted) != 0;
      if (!whole) break;
    }
    return i;
  }

  void store(State& state, uint8_t e, uint8_t op) const {
    const size_t command = command_of(e, op);
    if (op >= state.ends[e].posted || is_record(e, op) || !has_bytes(courses[e][command])) return;
    Place& place = state.ends[1 - e].places.at[command];
    if (place == Place::kTaken) return wrong(state, Fault::kAgain);
    place = Place::kThere;
  }

  // A completion queue has one entry at most: all orders of what comes in are orders of turns.
  void turn(State& state, size_t e, const Event& event, bool pushes = false) const {
    End& end = state.ends[e];
    if (end.told < end.asked && !end.crediting && end.credits < kMostCredits) {
      end.credit[end.credits] = kPosted | kStored;
      end.credited[end.credits++] = end.told = end.taken;
      end.crediting = true;
    }
    if (pushes) push(end, e);
    if (event.kind == Event::kArrival) arrive(state, e, event.index);
    if (event.kind == Event::kCredit)
      acknowledge(state, e, state.ends[1 - e].credited[event.index]);
    if (event.kind == Event::kCompletion && event.index >= kCredits) end.crediting = false;
    for (size_t i = completed(end, e); i > 0; --i) {
      if (courses[e][i - 1] == 'D') wrong(state, state.ends[1 - e].places.take(courses[e], i - 1));
    }
  }
  void push(End& end, size_t e) const {
    const char command = courses[e][end.pushed++];
    if (command == 'D' && (end.acknowledged >= end.posted || flaw == GateFlaw::kAtCompletion)) {
      end.drained = true;
      return;
    }
    for (uint8_t i = ops_of(command); i > 0; --i) {
      const uint8_t op = end.posted++;
      end.ops[op] = is_record(e, op) || command == 'D' ? kPosted | kStored : kPosted;
      if (!is_record(e, op)) continue;
      end.consumed[op] = end.told = end.taken;
    }
  }
  void arrive(State& state, size_t e, uint8_t op) const {
    End& end = state.ends[e];
    const auto bit = static_cast<uint8_t>(1u << op);
    const bool passed = flaw == GateFlaw::kNoWrap ? static_cast<uint16_t>(first + op) <
                                                        static_cast<uint16_t>(first + end.taken)
                                                  : op < end.taken;
    if (passed || (end.arrived & bit) != 0) {
      if (flaw != GateFlaw::kTwice) return;
      end.arrived |= static_cast<uint8_t>(1u << end.taken);
    }
    end.arrived |= bit;
    if (flaw == GateFlaw::kAtOnce && is_record(1 - e, op)) take(state, e, op);
    while (end.taken < kMostOps && (end.arrived >> end.taken & 1) != 0) {
      const uint8_t next = end.taken++;
      if (next >= state.ends[1 - e].posted) continue;
      if (is_record(1 - e, next) && flaw != GateFlaw::kAtOnce) take(state, e, next);
      const bool ask = courses[1 - e][command_of(1 - e, next)] == 'D';
      if (ask && flaw != GateFlaw::kUnasked) end.asked = end.taken;
    }
  }
  void take(State& state, size_t e, uint8_t op) const {
    state.ends[e].signals += 1;
    acknowledge(state, e, state.ends[1 - e].consumed[op]);
    wrong(state, state.ends[e].places.take(courses[1 - e], command_of(1 - e, op) + 1));
  }
  // What was said before is no fault.
  void acknowledge(State& state, size_t e, uint8_t taken) const {
    End& end = state.ends[e];
    if (taken < end.acknowledged) return;
    if (taken > end.posted) return wrong(state, Fault::kCount);
    end.acknowledged = taken;
    if (end.pushed == 0 || courses[e][end.pushed - 1u] != 'D') return;
    end.drained = end.drained || taken >= first_op(e, end.pushed - 1u);
  }
};

}  // namespace epfabric::test
