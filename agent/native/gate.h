// Order over a network that keeps none. Every operation of a link carries its sequence; the
// receiver takes them in that order, whatever order they arrive in, and says how many it took.
// Pure; used by remote_gate.h, for endpoints that are Unordered. docs/ordering.md argues why it is
// right.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "mailbox.h"

namespace epfabric::agent {

// Sequences of one link that the receiver has not acknowledged: at most this many.
inline constexpr uint32_t kWindow = 16384;

// What a sequence stands for.
enum class Step : uint8_t {
  kPayload,
  kRecord,  // lies in the mailbox: the n-th record in order in slot n mod kMailboxSlots
  kAsk,     // asks for credit as soon as it is taken
};

// The sender's end. Counts start at `first`, the same at both ends.
class Departures {
 public:
  explicit Departures(uint64_t first) : next_(first), acknowledged_(first) {}

  bool room() const { return next_ - acknowledged_ < kWindow; }
  uint16_t sequence() const { return static_cast<uint16_t>(next_); }
  void sent(Step step) {
    if (step == Step::kRecord) records_[records_sent_++ % kMailboxSlots] = next_;
    next_ += 1;
  }

  // The receiver took all below `taken` (modulo 2^32, from a record). What it said before is no
  // fault: a record may be older than a credit. False for more than was sent.
  bool acknowledge(uint32_t taken) {
    return advance(static_cast<int32_t>(taken - static_cast<uint32_t>(acknowledged_)));
  }
  // The same modulo 2^16, from an immediate: told() never runs ahead of a credit under way by more
  // than a window, so that an old one is seen to be old.
  bool acknowledge(uint16_t taken) {
    return advance(static_cast<int16_t>(taken - static_cast<uint16_t>(acknowledged_)));
  }
  uint64_t total() const { return next_; }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t records_acknowledged() const { return records_acknowledged_; }

 private:
  bool advance(int64_t ahead) {
    if (ahead < 0) return true;
    if (static_cast<uint64_t>(ahead) > next_ - acknowledged_) return false;
    acknowledged_ += static_cast<uint64_t>(ahead);
    while (records_acknowledged_ < records_sent_ &&
           records_[records_acknowledged_ % kMailboxSlots] < acknowledged_)
      records_acknowledged_ += 1;
    return true;
  }

  uint64_t next_;
  uint64_t acknowledged_;
  std::array<uint64_t, kMailboxSlots> records_{};  // sequences of those under way
  uint64_t records_sent_ = 0;
  uint64_t records_acknowledged_ = 0;
};

// The receiver's end.
class Arrivals {
 public:
  enum class Came : uint8_t { kNew, kAgain, kOutside };

  explicit Arrivals(uint64_t first) : taken_(first), told_(first), asked_(first), credit_(first) {}

  Came arrive(uint16_t sequence, Step step) {
    const auto ahead = static_cast<int16_t>(sequence - static_cast<uint16_t>(taken_));
    if (ahead < 0) return Came::kAgain;
    if (static_cast<uint32_t>(ahead) >= kWindow) return Came::kOutside;
    const auto at = static_cast<uint32_t>(taken_ + static_cast<uint64_t>(ahead)) % kWindow;
    if (arrived_.get(at)) return Came::kAgain;
    arrived_.set(at, true);
    records_.set(at, step == Step::kRecord);
    asks_.set(at, step == Step::kAsk);
    return Came::kNew;
  }

  // Takes the next one in order. False when it has not arrived.
  bool next(Step& out) {
    const auto at = static_cast<uint32_t>(taken_ % kWindow);
    if (!arrived_.get(at)) return false;
    arrived_.set(at, false);
    taken_ += 1;
    out = records_.get(at) ? Step::kRecord : asks_.get(at) ? Step::kAsk : Step::kPayload;
    if (out == Step::kAsk) asked_ = taken_;
    return true;
  }
  uint64_t taken() const { return taken_; }

  // Word is due: it was asked for, or a quarter of the window was taken.
  bool owes() const { return told_ < asked_ || taken_ - told_ >= kWindow / 4; }
  // What a record may say was taken; told() once it is posted.
  uint64_t tellable() const { return crediting_ ? std::min(taken_, credit_ + kWindow) : taken_; }
  void told(uint64_t taken) { told_ = taken; }
  // A credit by itself, one at a time: credited() once it has completed.
  bool may_credit() const { return !crediting_; }
  void credit() {
    crediting_ = true;
    credit_ = told_ = taken_;
  }
  void credited() { crediting_ = false; }

 private:
  class Bits {
   public:
    bool get(uint32_t at) const { return (words_[at / 64] >> (at % 64) & 1) != 0; }
    void set(uint32_t at, bool value) {
      const uint64_t bit = uint64_t{1} << (at % 64);
      words_[at / 64] = value ? words_[at / 64] | bit : words_[at / 64] & ~bit;
    }

   private:
    std::array<uint64_t, kWindow / 64> words_{};
  };

  uint64_t taken_;
  uint64_t told_;    // the most that was told
  uint64_t asked_;   // what was taken with the last ask
  uint64_t credit_;  // what the last credit says
  bool crediting_ = false;
  Bits arrived_, records_, asks_;
};

struct Operation;

// Both ends at one proxy, of one link.
struct Gate {
  Departures departures;
  Arrivals arrivals;
  Operation* waiting = nullptr;  // for credit, in order
  Operation* last_waiting = nullptr;
  uint32_t waits = 0;

  explicit Gate(uint64_t first) : departures(first), arrivals(first) {}
};

}  // namespace epfabric::agent
