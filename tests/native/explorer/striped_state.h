// The states of the model in striped_model.h: two ends of a link over two lines.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "course.h"

namespace epfabric::test {

// One thing that the protocol rests on, left out.
enum class StripedFlaw : uint8_t {
  kNone,
  kNothingThere,  // what failed on a line is all sent again
  kAllThere,      // nothing of it is
  kOwnLine,       // greetings tell of their own line alone
  kAcross,        // a line goes on to the peer's next era by itself
  kEarly,         // counts are those of when the first line broke
  kUnfollowed,    // a line that is out does not say that the peer is in a later era
};

struct StripedState {
  enum class Stage : uint8_t { kNone, kFlying, kDone, kFailing, kLost, kCompleted };
  enum class Mend : uint8_t { kWhole, kBroken, kMeeting };
  static constexpr uint8_t kLines = 2;
  static constexpr uint8_t kCredit = kMostCommands;  // behind the commands' operations
  static constexpr uint8_t kOps = kMostCommands + 1;
  // A generation that only a flaw comes to; later ones are alike.
  static constexpr uint8_t kEndless = 4;
  using Counts = std::array<uint8_t, kLines>;  // of immediates

  struct Op {
    Stage stage = Stage::kNone;
    uint8_t line = 0, number = 0;  // of the line's immediates
    bool queued = false;           // at the peer, not polled yet
    bool late = false;             // its connection broke, and it may still arrive
    uint8_t says = 0;              // a record, a credit: so many were taken

    bool flies() const { return stage == Stage::kFlying || stage == Stage::kDone; }
  };
  struct Line {
    bool seen = true, acknowledged = true;  // these and the next as verbs_greeting.h has them
    uint8_t generation = 0;
    bool up = true;  // it is used
    bool failed = false, broke = false, ending = false, drained = false;
    bool alone = false;  // it is made anew by itself
    bool gone = false;
    uint8_t later = 0;  // the era that broke it
    Counts told{};      // what came by each when it was made
    Counts heard{};     // what the peer told, until it is known of all that was sent
    bool met() const { return seen && acknowledged; }
  };
  struct Greeting {
    bool there = false;
    uint8_t line = 0, era = 0, generation = 0;
    bool seen = false, acknowledged = false;
    Counts told{};
  };
  struct End {
    uint8_t pushed = 0, posted = 0;
    bool held = false;  // the last command is not posted yet
    bool drained = false;
    std::array<Op, kOps> ops{};
    std::array<Line, kLines> lines{};
    Counts came{}, sent{};  // by each line
    Counts early{};         // what had come when the first line broke
    bool counted = false;   // that is set
    uint8_t era = 0;
    Mend mend = Mend::kWhole;
    bool broken = false;  // it has to break: a line that was used is gone
    bool shut = false;    // until it has
    uint8_t arrived = 0;  // a bit for each
    uint8_t taken = 0, told = 0, asked = 0, acknowledged = 0, signals = 0;
    Greeting mail{};
    Places places;

    bool up() const { return lines[0].up || lines[1].up; }
    bool owes() const {
      return told < asked && mend == Mend::kWhole && ops[kCredit].stage == Stage::kNone;
    }
  };

  std::array<End, 2> ends;
  uint8_t breaks = 0, kills = 0;
  std::array<bool, kLines> dead{};
  Fault fault = Fault::kNone;

  // Of what was posted on this line; kOps: there is none.
  template <class Is>
  static uint8_t first_of(const End& end, uint8_t l, Is&& is) {
    uint8_t out = kOps;
    for (uint8_t i = 0; i < kOps; ++i) {
      const Op& op = end.ops[i];
      if (op.line == l && is(op) && (out == kOps || op.number < end.ops[out].number)) out = i;
    }
    return out;
  }
  // Whether what this end sends on the line reaches the peer's end of the same connection.
  bool reaches(size_t e, uint8_t l) const {
    const Line& there = ends[1 - e].lines[l];
    return !dead[l] && !there.ending && there.seen &&
           there.generation == ends[e].lines[l].generation;
  }
  void wrong(Fault found) {
    if (fault == Fault::kNone) fault = found;
  }
  // What says nothing any more, so that states are alike.
  static void forget(Op& op) {
    if (op.queued || (op.stage != Stage::kCompleted && op.stage != Stage::kNone)) return;
    op.line = op.number = 0;
  }
  static void complete(End& end, uint8_t i) {
    end.ops[i].stage = i == kCredit ? Stage::kNone : Stage::kCompleted;
    forget(end.ops[i]);
  }

  // All that is under way on the line fails; the first `arriving` of what is not done may still
  // arrive.
  static void flush(End& end, uint8_t l, uint8_t arriving) {
    const auto flies = [](const Op& op) { return op.flies(); };
    end.lines[l].failed = true;
    end.lines[l].acknowledged = false;
    for (uint8_t i = first_of(end, l, flies); i < kOps; i = first_of(end, l, flies)) {
      Op& op = end.ops[i];
      op.late = op.stage == Stage::kFlying && arriving > 0;
      arriving -= op.late ? 1 : 0;
      op.stage = Stage::kFailing;
    }
  }

  // The line takes nothing in any more.
  void begin_to_end(size_t e, uint8_t l) {
    Line& line = ends[e].lines[l];
    if (!line.seen || line.ending) return;
    flush(ends[e], l, 0);
    line.ending = true;
    for (Op& op : ends[1 - e].ops) op.late = op.late && op.line != l;
  }
  // With the first line of an era it is known what has arrived.
  static void join(End& end, Line& line) {
    if (!end.up()) {
      end.sent = line.heard;
      for (Line& each : end.lines) each.heard = {};
    }
    line.up = true;
  }

  // On the line that `ways` says for it, or the other one.
  static bool post(End& end, uint8_t i, uint8_t& ways, uint8_t says) {
    uint8_t l = ways & 1;
    if (!end.lines[l].met()) l = 1 - l;
    if (!end.lines[l].met() || end.shut) return false;
    ways = static_cast<uint8_t>(ways >> 1);
    end.ops[i] = {Stage::kFlying, l, end.sent[l]++, false, false, says};
    return true;
  }
};

}  // namespace epfabric::test
