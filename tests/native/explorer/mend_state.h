// The states of the model in mend_model.h: two ends of a link whose connection breaks.
#pragma once

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
  kCount,
};

struct MendState {
  enum class Op : uint8_t { kNone, kFlying, kDone, kAnswered, kFailing, kLost, kCompleted };
  enum class Mend : uint8_t { kWhole, kBroken, kMeeting };
  struct Greeting {
    uint8_t generation, seen, acknowledged, taken;
    bool operator==(const Greeting&) const = default;
  };
  static constexpr uint8_t kMail = 2;
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
    uint8_t proven = 0;      // records that the peer is known to have taken
    uint8_t generation = 1;  // three as verbs_greeting.h has them
    uint8_t seen = 1;
    uint8_t acknowledged = 1;
    bool failed = false, noticed = true, ending = false, drained = false;
    Mend mend = Mend::kWhole;
    uint8_t queued = 0;
    std::array<uint8_t, kQueue> queue{};
    uint8_t late = 0;
    std::array<uint8_t, kOps> lates{};
    uint8_t mails = 0;
    std::array<Greeting, kMail> mail{};
    bool operator==(const End&) const = default;

    bool met() const { return seen != 0 && acknowledged == generation; }
    bool flies(size_t i) const { return ops[i] == Op::kFlying || ops[i] == Op::kDone; }
  };
  std::array<End, 2> ends;
  uint8_t breaks = 0;
  Fault fault = Fault::kNone;
};

}  // namespace epfabric::test
