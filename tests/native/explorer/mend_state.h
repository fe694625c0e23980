// The states of the model in mend_model.h: two ends of a link whose connection breaks, and how they
// meet again, over the line that it had or over the other one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

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
  kUnheard,        // nobody listens where its link does not go
  kOwnNumber,      // who hears of a later connection takes its own next number
  kBelated,        // what the connection before told counts
  kAddsAgain,      // an ADD of a NIC's that failed is sent again
  kAddsDone,       // one that failed counts as done
};

struct MendState {
  enum class Op : uint8_t { kNone, kFlying, kDone, kAnswered, kFailing, kLost, kCompleted };
  enum class Mend : uint8_t { kWhole, kBroken, kMeeting };
  struct Greeting {
    uint8_t era, generation, seen, acknowledged, taken;
    bool operator==(const Greeting&) const = default;
  };
  static constexpr uint8_t kMail = 2;
  static constexpr uint8_t kLines = 2;
  // A number that only a flaw comes to; of the later ones those of one line are alike.
  static constexpr uint8_t kEndless = 12;
  // Behind the commands' operations: the answer to the other end's ATOMIC, of which there is one at
  // most; an end that answers has no other records.
  static constexpr uint8_t kAnswer = kMostCommands;
  static constexpr uint8_t kOps = kMostCommands + 1;
  static constexpr uint8_t kMostRecords = 2 * kOps + 1;  // more come by a flaw alone
  static constexpr uint8_t kQueue = kMostRecords + kOps + 1;
  // What stands in a completion queue: what it is, and the command that it is about.
  enum Entry : uint8_t { kOk = 0x00, kFail = 0x10, kRecord = 0x20, kEnded = 0x30 };

  struct End {
    uint8_t pushed = 0;
    bool held = false;      // the last one is not posted yet
    bool owes = false;      // that answer
    bool answered = false;  // its own ATOMIC
    std::array<Op, kOps> ops{};
    std::array<uint8_t, kOps> consumed{};  // what their records say was taken
    Places places;
    uint8_t taken = 0;       // records
    uint8_t told = 0;        // of these, when the connection was made
    uint8_t heard = 0;       // what the peer told
    uint8_t before = 0;      // what it told then, by a flaw
    uint8_t proven = 0;      // records that the peer is known to have taken
    uint8_t generation = 1;  // three as verbs_greeting.h has them
    uint8_t seen = 1;
    uint8_t acknowledged = 1;
    uint8_t era = 0;       // of the connection; its line is this modulo kLines
    uint8_t rested = 1;    // the other line's generation
    uint8_t later = 0;     // an era that the peer is in, beyond the own one
    bool called = false;   // by the line that rests, and not noticed yet
    bool leaving = false;  // the next connection goes over the other line
    bool meeting = false;  // the present one was not met yet
    std::array<bool, kLines> gone{};
    bool failed = false, noticed = true, ending = false, drained = false;
    Mend mend = Mend::kWhole;
    uint8_t queued = 0;
    std::array<uint8_t, kQueue> queue{};
    uint8_t late = 0;
    std::array<uint8_t, kOps> lates{};
    uint8_t mails = 0;
    std::array<Greeting, kMail> mail{};
    bool operator==(const End&) const = default;

    uint8_t line() const { return era % kLines; }
    bool met() const { return seen != 0 && acknowledged == generation; }
    bool flies(size_t i) const { return ops[i] == Op::kFlying || ops[i] == Op::kDone; }
  };
  std::array<End, 2> ends;
  uint8_t breaks = 0, kills = 0, hurries = 0;
  std::array<bool, kLines> dead{};
  bool ended = false;  // an ADD of a NIC's may have been done or not
  Fault fault = Fault::kNone;

  void wrong(Fault found) {
    if (fault == Fault::kNone) fault = found;
  }
  // Whether what this end sent reaches the peer's end of the same connection.
  bool reaches(size_t e) const {
    const End &end = ends[e], &other = ends[1 - e];
    return !dead[end.line()] && !other.ending && other.line() == end.line() &&
           other.seen == end.generation;
  }
  // All that is under way fails; the first `arriving` of what is not done arrive later.
  void fail(size_t e, uint8_t arriving) {
    End &end = ends[e], &other = ends[1 - e];
    end.failed = true;
    end.noticed = false;
    end.acknowledged = 0;
    for (uint8_t i = 0; i < kOps; ++i) {
      if (!end.flies(i)) continue;
      if (end.ops[i] == Op::kFlying && arriving > 0 && other.late < kOps) {
        arriving -= 1;
        other.lates[other.late++] = i;
      }
      end.ops[i] = Op::kFailing;
      end.queue[end.queued++] = static_cast<uint8_t>(kFail | i);
    }
  }
  // The NIC of this end goes, and the line with it.
  void kill(size_t e, uint8_t line) {
    dead[line] = ends[e].gone[line] = true;
    if (ends[e].line() == line && !ends[e].failed) fail(e, 0);
  }

  // Of as many as are on their way at once, the oldest one is lost.
  void greet(size_t e, uint8_t most) {
    const End& end = ends[e];
    End& other = ends[1 - e];
    if (dead[end.line()]) return;
    const Greeting greeting{end.era, end.generation, end.seen, end.acknowledged, end.told};
    const auto last = other.mail.begin() + other.mails;
    if (std::find(other.mail.begin(), last, greeting) != last) return;
    if (other.mails == most) {
      std::rotate(other.mail.begin(), other.mail.begin() + 1, other.mail.end());
      other.mails -= 1;
    }
    other.mail[other.mails++] = greeting;
  }
  // Whether it is to be answered.
  bool hear(size_t e, const Greeting& greeting, MendFlaw flaw) {
    End& end = ends[e];
    const uint8_t line = greeting.era % kLines;
    const bool rests = line != end.line(), news = greeting.era > std::max(end.era, end.later);
    if (news && !(rests && flaw == MendFlaw::kUnheard)) {
      end.later = greeting.era;
      end.called = end.called || (rests && !end.gone[line]);
    }
    if (rests || end.failed) return false;
    if (greeting.era > end.era) {
      fail(e, 0);
      return false;
    }
    const bool old = greeting.generation < end.generation;
    if (greeting.era < end.era || (old && flaw != MendFlaw::kAnyGeneration)) return false;
    if (greeting.generation > end.generation && end.seen != 0) {
      fail(e, 0);
      return false;
    }
    if (greeting.generation > end.generation) {
      end.generation = greeting.generation;
      end.seen = end.acknowledged = 0;
    }
    if (greeting.seen == end.generation) end.acknowledged = greeting.seen;
    const bool answer = end.seen == 0 || greeting.acknowledged != greeting.generation;
    if (end.seen == 0) {
      end.seen = greeting.generation;
      if (flaw == MendFlaw::kBelated) end.before = end.heard;
      end.heard = greeting.taken;
    }
    if (end.met()) end.meeting = false;
    return answer;
  }
  // The connection after the present one, of which nothing is left.
  void remake(size_t e, bool lines, bool own) {
    End& end = ends[e];
    if (lines) {
      uint8_t next = end.later > 0 && !own ? end.later : end.era + (end.leaving ? 1 : kLines);
      if (end.gone[next % kLines]) next += 1;
      if (next > kEndless) next -= kLines;
      if (next % kLines != end.line()) std::swap(end.generation, end.rested);
      end.era = next;
      if (end.later <= next) end.later = 0;
    }
    end.generation = std::min<uint8_t>(end.generation + 1u, kEndless);
    end.seen = end.acknowledged = 0;
    end.told = end.taken;
    end.failed = end.ending = end.drained = end.leaving = false;
    end.meeting = lines;
  }
};

}  // namespace epfabric::test
