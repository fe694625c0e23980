// The time stamps of a node's last barriers: a ring that the last rank to leave a barrier writes,
// without lock or allocation, and that Python reads while it moves on. Two writers never meet: who
// leaves barrier n+1 last came after who left n. Held by BarrierStats.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "memory.h"
#include "trace.h"

namespace epfabric::agent {

inline constexpr uint32_t kNoRank = ~0u;

// One barrier as one node saw it; times in order, by platform::clock_ns().
struct BarrierTimes {
  Id128 group;
  uint64_t number = 0;
  uint32_t epoch = 0;
  uint32_t last_rank = 0;  // of all on the leader's node, else of this one; or kNoRank
  bool leads = false;
  bool kept = false;
  uint64_t began_ns = 0;     // the group's first rank arrived, as far as is known here
  uint64_t first_ns = 0;     // the node's first rank arrived
  uint64_t entered_ns = 0;   // its last rank had arrived
  uint64_t posted_ns = 0;    // its arrival was posted (recorded, on the leader)
  uint64_t network_ns = 0;   // the release came (all nodes had arrived, on the leader)
  uint64_t released_ns = 0;  // its ranks may go
  uint64_t left_ns = 0;      // the last one went
  bool alone = false;        // nobody collects: the last rank is this node's everywhere
};

template <uint64_t kSize>
class TrailOf {
 public:
  static constexpr uint64_t kCapacity = kSize;

  struct Taken {
    uint64_t position = 0;     // from where to go on
    uint64_t overwritten = 0;  // entries since the asked position that are lost
    std::vector<BarrierTimes> barriers;
  };

  TrailOf() : memory_(Mapping::anonymous(kCapacity * sizeof(Entry), "the stamps of barriers")) {}

  // Each store of a word is a release, so that a reader that saw a new word sees `ticket` change.
  void add(const BarrierTimes& times) {
    const uint64_t at = count_.load(std::memory_order_relaxed);
    Entry& entry = entry_of(at);
    entry.ticket.store(0, std::memory_order_relaxed);
    const Words words = pack(times);
    for (size_t i = 0; i < words.size(); ++i)
      entry.words[i].store(words[i], std::memory_order_release);  // partner: read()
    entry.ticket.store(at + 1, std::memory_order_release);        // partner: read()
    count_.store(at + 1, std::memory_order_release);              // partner: take()
  }

  // Of the last few that were added; false where it is not among them.
  bool find(const Id128& group, uint32_t epoch, uint64_t number, BarrierTimes& out) const {
    const uint64_t end = count_.load(std::memory_order_acquire);
    for (uint64_t back = 1; back <= 4 && back <= end; ++back) {
      if (read(end - back, out) && out.group == group && out.epoch == epoch && out.number == number)
        return true;
    }
    return false;
  }

  // At most `limit` of the barriers added since `position`, oldest first.
  Taken take(uint64_t position, uint64_t limit) const {
    const uint64_t end = count_.load(std::memory_order_acquire);
    Taken out;
    uint64_t at = end > kCapacity && position < end - kCapacity ? end - kCapacity : position;
    out.overwritten = at - position;
    BarrierTimes times;
    for (; at < end && out.barriers.size() < limit; ++at) {
      if (read(at, times)) {
        out.barriers.push_back(times);
      } else {
        out.overwritten += 1;
      }
    }
    out.position = at;
    return out;
  }

 private:
  using Words = std::array<uint64_t, 12>;
  struct Entry {
    std::atomic<uint64_t> ticket{0};  // 1 + the entry's place in the trail; 0 while it is written
    std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words{};
  };
  Entry& entry_of(uint64_t at) const {
    return reinterpret_cast<Entry*>(memory_.data())[at % kCapacity];
  }

  static Words pack(const BarrierTimes& t) {
    const uint64_t place = uint64_t{t.epoch} << 32 | t.last_rank;
    const uint64_t flags = uint64_t{t.alone} << 2 | uint64_t{t.leads} << 1 | uint64_t{t.kept};
    return {t.group.high, t.group.low,  t.number,    place,        flags,         t.began_ns,
            t.first_ns,   t.entered_ns, t.posted_ns, t.network_ns, t.released_ns, t.left_ns};
  }
  static BarrierTimes unpack(const Words& w) {
    const auto epoch = static_cast<uint32_t>(w[3] >> 32);
    const auto last_rank = static_cast<uint32_t>(w[3]);
    const bool leads = (w[4] & 2) != 0, kept = (w[4] & 1) != 0;
    return {{w[0], w[1]}, w[2], epoch, last_rank, leads, kept,  w[5],
            w[6],         w[7], w[8],  w[9],      w[10], w[11], (w[4] & 4) != 0};
  }

  // False where the entry is another one by now.
  bool read(uint64_t at, BarrierTimes& out) const {
    const Entry& entry = entry_of(at);
    if (entry.ticket.load(std::memory_order_acquire) != at + 1) return false;
    Words words;
    for (size_t i = 0; i < words.size(); ++i)
      words[i] = entry.words[i].load(std::memory_order_acquire);
    if (entry.ticket.load(std::memory_order_relaxed) != at + 1) return false;
    out = unpack(words);
    return true;
  }

  // Zeros are entries that nobody has written. Mapped, so that a group costs what its barriers
  // write, and all of it goes back when the group does.
  Mapping memory_;
  std::atomic<uint64_t> count_{0};
};

using Trail = TrailOf<4096>;

}  // namespace epfabric::agent
