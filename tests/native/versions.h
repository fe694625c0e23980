// What every rank writes in a round, as a pure function of (seed, round, rank, ring), and what each
// word that is written holds: its round, its writer and its place. Used by versions_test.cc.
#pragma once

#include <epfabric/command.h>

#include <algorithm>
#include <random>
#include <vector>

namespace epfabric::agent {

// How a rank's region is divided. Each (parity of the round, source rank, ring) has an area that
// nobody else writes; behind them lies a buffer for each own ring, where its writes come from.
struct Areas {
  uint32_t world;
  uint32_t rings;
  uint32_t signals;
  uint32_t units;  // of an area, and of a ring's buffer
  uint32_t most;   // portions of a ring in a round

  uint32_t area(uint64_t round, uint32_t source, uint32_t ring) const {
    return ((static_cast<uint32_t>(round & 1) * world + source) * rings + ring) * units;
  }
  uint32_t areas() const { return 2 * world * rings * units; }
  uint32_t buffer(uint32_t ring) const { return areas() + ring * units; }
  uint64_t bytes() const { return (uint64_t{areas()} + rings * units) * kUnitBytes; }
};

// One WRITE, or a SIGNAL where `units` is 0. Places in units, within area and buffer.
struct Portion {
  uint32_t rank;
  uint32_t from;
  uint32_t to;
  uint32_t units;
  uint32_t signal;
  uint32_t advance;
};

struct Plan {
  std::vector<Portion> portions;  // in ticket order
  bool drained = false;           // a DRAIN follows, and the readers are told
  bool waited = false;            // the writer waits for completion and reuses the buffer
  bool overlaps = false;          // some word is written twice
};

// round 24 | portion 8 | writer 4 | ring 4 | unit's half in the reader's region 24
inline uint64_t word_of(uint64_t round, size_t portion, uint32_t writer, uint32_t ring,
                        uint64_t half) {
  return (round << 40) | (uint64_t{portion} << 32) | (uint64_t{writer} << 28) |
         (uint64_t{ring} << 24) | half;
}
inline uint64_t round_of(uint64_t word) { return word >> 40; }
inline constexpr uint64_t kPoison = ~uint64_t{0};  // a round that never comes

class Draw {
 public:
  Draw(uint64_t seed, uint64_t round, uint32_t rank, uint32_t ring) {
    std::seed_seq mixed{seed, seed >> 32, round, uint64_t{rank}, uint64_t{ring}};
    random_.seed(mixed);
  }
  uint32_t below(uint64_t bound) { return static_cast<uint32_t>(random_() % bound); }
  bool one_in(uint32_t n) { return below(n) == 0; }
  // Small ones are as likely as large ones: a power of two at random, then a number up to it.
  uint32_t length(uint32_t most) {
    uint32_t bits = 0;
    while ((uint64_t{1} << bits) < most) ++bits;
    const uint64_t limit = uint64_t{1} << below(bits + 1);
    return one_in(32) ? most : 1 + below(std::min<uint64_t>(limit, most));
  }

 private:
  std::mt19937_64 random_;
};

inline bool overlap(const Portion& a, const Portion& b) {
  return a.rank == b.rank && a.to < b.to + b.units && b.to < a.to + a.units;
}

// Whether the rank enters this round's barrier as soon as all is pushed.
inline bool hurries(uint64_t seed, uint64_t round, uint32_t rank) {
  return Draw(seed, round, rank, ~0u).one_in(2);
}

inline Plan plan_of(const Areas& areas, uint64_t seed, uint64_t round, uint32_t rank,
                    uint32_t ring) {
  Draw draw(seed, round, rank, ring);
  Plan plan;
  if (!hurries(seed, round, rank)) {
    plan.drained = draw.one_in(3);
    plan.waited = plan.drained || draw.one_in(2);
  }
  const uint32_t count = draw.below(areas.most + 1);
  uint32_t from = 0, to = 0, target = draw.below(areas.world);
  while (plan.portions.size() < count && from < areas.units) {
    if (draw.one_in(4)) target = draw.below(areas.world);
    if (draw.one_in(4)) from = std::min(from + draw.below(3), areas.units - 1);  // no neighbour
    const uint32_t units =
        draw.one_in(8) ? 0 : draw.length(std::min(areas.units - from, kMaxUnits));
    if (draw.one_in(3) || to + units > areas.units) to = draw.below(areas.units - units + 1);
    Portion portion{target, from, to, units, 0, 0};
    if (units == 0 || draw.one_in(2)) {
      portion.signal = draw.below(areas.signals);
      portion.advance = 1 + draw.below(3);
    }
    for (const Portion& other : plan.portions)
      plan.overlaps = plan.overlaps || overlap(portion, other);
    plan.portions.push_back(portion);
    from += units;
    to += units;  // where the next one is a neighbour
  }
  return plan;
}

}  // namespace epfabric::agent
