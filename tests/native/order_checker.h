// Knows the ordering contract of FIFOs and watches a running group keep it, for unordered_test.cc.
// Pods are played here: they push random commands, use a source again as soon as `completed` allows
// it and a destination as soon as something said that the write is there. What is watched: a signal
// word has a value that its writer gave it, only grows, and implies every payload byte before it in
// its order domain; a completed DRAIN implies all earlier writes of its ring, a BARRIER those and
// the signals of all rings of all ranks; everything completes.
#pragma once

#include <epfabric/command.h>
#include <epfabric/fifo.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "session.h"

namespace epfabric::test {

inline constexpr uint32_t kPlaces = 64;  // writes of one order domain that may be under way
inline constexpr uint32_t kPlaceUnits = 40;
inline constexpr uint32_t kAreaUnits = kPlaces * kPlaceUnits;
inline constexpr uint32_t kWords = 2;  // signal words of a (ring, destination)

struct Unit {
  uint64_t number, place;
};
static_assert(sizeof(Unit) == kUnitBytes);

// From one ring of a rank to one destination rank.
struct OrderDomain {
  struct Said {
    uint64_t value, writes;
  };
  uint64_t writes = 0;  // pushed
  uint64_t seen = 0;    // of these, found at the destination
  std::array<uint32_t, kPlaces> units{};
  std::array<uint64_t, kPlaces> tickets{};
  std::array<uint64_t, kWords> pushed{};        // what the words will be
  std::array<uint64_t, kWords> value{};         // what they are
  std::array<std::deque<Said>, kWords> said{};  // values that the words will have, in order
  // A word in the destination's memory that each ADD makes one more.
  uint64_t added = 0, grown = 0;
  std::deque<Said> added_after{};
};

class OrderChecker {
 public:
  struct Rules {
    uint32_t signal_percent = 40, add_percent = 8, drain_percent = 3, barrier_per_mille = 2;
    uint32_t most_units = kPlaceUnits;
    uint32_t run_percent = 10;  // pushes of several WRITEs that are neighbours on both sides
  };

  // `sessions` by rank; each has a region of region_bytes().
  OrderChecker(std::vector<agent::Session*> sessions, uint64_t seed, const Rules& rules)
      : sessions_(std::move(sessions)), rules_(rules), random_(seed) {
    const agent::Shape& shape = sessions_[0]->shape();
    world_ = shape.world;
    rings_ = shape.rings;
    domains_.resize(size_t{world_} * rings_ * world_);
    for (uint32_t rank = 0; rank < world_; ++rank) {
      Pod& pod = pods_.emplace_back();
      for (uint32_t ring = 0; ring < rings_; ++ring) {
        const agent::Segments& segments = sessions_[rank]->segments();
        pod.rings.push_back({{const_cast<Slot*>(segments.slots(ring)),
                              &segments.counters(ring)->tail, 0, 0, shape.depth},
                             &segments.counters(ring)->completed,
                             {}});
      }
    }
  }
  static uint64_t region_bytes(uint32_t world, uint32_t rings) {
    return uint64_t{world} * rings * (2 * kAreaUnits * kUnitBytes + kWordBytes);
  }

  // A random command on a random ring, if there is room.
  void push() {
    const uint32_t rank = draw(world_), ring = draw(rings_);
    Pod& pod = pods_[rank];
    if (pod.in_barrier || pod.forgotten) return;
    if (barriers_begun_ > pod.barriers || draw(1000) < rules_.barrier_per_mille)
      return push_barrier(rank);
    if (draw(100) < rules_.drain_percent) return push_drain(rank, ring);
    const uint32_t to = draw(world_);
    if (draw(100) < rules_.add_percent) return push_atomic(rank, ring, to, draw(2) == 0);
    const uint32_t percent = rules_.signal_percent;
    if (draw(100) >= rules_.run_percent) return push_write(rank, ring, to, false, percent);
    for (uint32_t i = 2 + draw(9); i > 0; --i) push_write(rank, ring, to, true, percent);
  }
  void push_drain(uint32_t rank, uint32_t ring) {
    Entry entry{Op::kDrain, {}};
    for (uint32_t to = 0; to < world_; ++to) entry.writes.push_back(domain(rank, ring, to).writes);
    add(rank, ring, pack_drain(pods_[rank].rings[ring].producer.head), std::move(entry));
  }
  // An ADD of one, or a CAS that comes to the same: its taking effect says, like a signal, that the
  // writes before it are there.
  void push_atomic(uint32_t rank, uint32_t ring, uint32_t to, bool cas) {
    OrderDomain& flow = domain(rank, ring, to);
    RingModel& model = pods_[rank].rings[ring];
    const uint64_t word = word_offset(rank, ring) / kWordBytes;
    Slot slots[2]{};
    pack_atomic(cas ? Op::kCas : Op::kAdd, to, word, cas ? flow.added : 1, slots[0]);
    pack_atomic(Op::kCasSwap, 0, 0, flow.added + 1, slots[1]);
    if (!model.producer.try_push(slots, cas ? 2 : 1)) return;
    model.entries.insert(model.entries.end(), cas ? 2 : 1, Entry{Op::kAdd, {}});
    commands_ += 1;
    flow.added += 1;
    flow.added_after.push_back({flow.added, flow.writes});
  }
  // `whole`: it fills its place, so that the next one is its neighbour.
  void push_write(uint32_t rank, uint32_t ring, uint32_t to, bool whole, uint32_t signal_percent) {
    OrderDomain& flow = domain(rank, ring, to);
    const uint64_t number = flow.writes + 1;
    const bool reusable = number <= kPlaces || (number - kPlaces <= flow.seen &&
                                                completed(rank, ring, flow, number - kPlaces));
    const bool signal = !reusable || draw(100) < signal_percent;
    const uint32_t word = draw(kWords), advance = signal ? 1 + draw(5) : 0;
    Slot slot{};
    if (reusable) {
      if (number > kPlaces) require_untouched(rank, ring, to, number - kPlaces);
      const uint32_t count = whole ? kPlaceUnits : 1 + draw(draw(4) == 0 ? rules_.most_units : 3);
      Unit* source = &units(rank)[source_unit(ring, to, number)];
      for (uint32_t i = 0; i < count; ++i) source[i] = {number, place_name(rank, ring, to, i)};
      Write write{};
      write.rank = to;
      write.advance = advance;
      write.source = source_unit(ring, to, number);
      write.signal = signal ? word : 0;
      write.units = count;
      write.destination = target_unit(rank, ring, number);
      pack_write(write, slot);
      const uint64_t ticket = pods_[rank].rings[ring].producer.head;
      if (!add(rank, ring, slot, {Op::kWrite, {}, to, number})) return;
      flow.writes = number;
      flow.units[number % kPlaces] = count;
      flow.tickets[number % kPlaces] = ticket;
    } else {
      pack_signal(to, word, advance, slot);
      if (!add(rank, ring, slot, {Op::kSignal, {}})) return;
    }
    if (!signal) return;
    flow.pushed[word] += advance;
    flow.said[word].push_back({flow.pushed[word], flow.writes});
  }
  // How many of these writes are known to be there.
  uint64_t seen(uint32_t rank, uint32_t ring, uint32_t to) { return domain(rank, ring, to).seen; }
  // Nothing is expected of this rank any more, nor of what is written to it.
  void forget(uint32_t rank) { pods_[rank].forgotten = true; }
  bool completed(uint32_t rank) const {
    const std::vector<RingModel>& rings = pods_[rank].rings;
    return std::all_of(rings.begin(), rings.end(),
                       [](const RingModel& ring) { return ring.entries.empty(); });
  }
  uint64_t commands() const { return commands_; }

  // Looks at everything; what is wrong stands in fault() from then on.
  void look() {
    for (uint32_t rank = 0; rank < world_; ++rank) {
      if (pods_[rank].forgotten) continue;
      look_at_signals(rank);
      for (uint32_t ring = 0; ring < rings_; ++ring) look_at_completed(rank, ring);
    }
  }
  bool all_completed() const {
    for (uint32_t rank = 0; rank < world_; ++rank) {
      if (!pods_[rank].forgotten && !completed(rank)) return false;
    }
    return true;
  }
  bool all_signalled() const {
    for (size_t i = 0; i < domains_.size(); ++i) {
      const OrderDomain& flow = domains_[i];
      if (pods_[i % world_].forgotten || pods_[i / world_ / rings_].forgotten) continue;
      if (flow.value != flow.pushed || flow.grown != flow.added) return false;
    }
    return true;
  }
  // Ranks that have entered fewer barriers than others enter theirs.
  void finish_barriers() {
    for (uint32_t rank = 0; rank < world_; ++rank) {
      const Pod& pod = pods_[rank];
      if (!pod.forgotten && !pod.in_barrier && pod.barriers < barriers_begun_) push_barrier(rank);
    }
  }
  bool barriers_even() const {
    return std::all_of(pods_.begin(), pods_.end(), [this](const Pod& pod) {
      return pod.forgotten || (!pod.in_barrier && pod.barriers == barriers_begun_);
    });
  }
  uint64_t barriers() const { return barriers_begun_; }
  // What was known to be there stayed as its receiver left it.
  void look_at_places() {
    for (uint32_t from = 0; from < world_; ++from) {
      for (uint32_t ring = 0; ring < rings_; ++ring) {
        for (uint32_t to = 0; to < world_; ++to) {
          const uint64_t seen = domain(from, ring, to).seen;
          const uint64_t writes = domain(from, ring, to).writes;
          const uint64_t first = writes > kPlaces ? writes - kPlaces : 0;
          for (uint64_t number = first + 1; number <= seen; ++number)
            require_untouched(from, ring, to, number);
        }
      }
    }
  }
  const std::string& fault() const { return fault_; }

 private:
  struct Entry {
    Op op;
    std::vector<uint64_t> writes;  // DRAIN: by destination, what it covers
    uint32_t to = 0;               // WRITE
    uint64_t number = 0;
  };
  struct RingModel {
    Producer producer;
    const uint64_t* completed;
    std::deque<Entry> entries;  // not completed
  };
  using Covered = std::pair<uint64_t, std::array<uint64_t, kWords>>;  // writes, words; as pushed
  struct Pod {
    std::vector<RingModel> rings;
    uint64_t barriers = 0;
    bool in_barrier = false;
    bool forgotten = false;
  };

  uint32_t draw(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  OrderDomain& domain(uint32_t from, uint32_t ring, uint32_t to) {
    return domains_[(size_t{from} * rings_ + ring) * world_ + to];
  }
  Unit* units(uint32_t rank) {
    return reinterpret_cast<Unit*>(sessions_[rank]->regions()[0].memory.data());
  }
  uint32_t target_unit(uint32_t from, uint32_t ring, uint64_t number) const {
    return (from * rings_ + ring) * kAreaUnits +
           static_cast<uint32_t>(number % kPlaces) * kPlaceUnits;
  }
  uint32_t source_unit(uint32_t ring, uint32_t to, uint64_t number) const {
    return (world_ * rings_ + ring * world_ + to) * kAreaUnits +
           static_cast<uint32_t>(number % kPlaces) * kPlaceUnits;
  }
  // Behind all places.
  uint64_t word_offset(uint32_t from, uint32_t ring) const {
    return uint64_t{2} * world_ * rings_ * kAreaUnits * kUnitBytes +
           (uint64_t{from} * rings_ + ring) * kWordBytes;
  }
  void wrong(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  bool add(uint32_t rank, uint32_t ring, const Slot& slot, Entry entry) {
    RingModel& model = pods_[rank].rings[ring];
    if (!model.producer.try_push(&slot, 1)) return false;
    model.entries.push_back(std::move(entry));
    commands_ += 1;
    return true;
  }

  void push_barrier(uint32_t rank) {
    Pod& pod = pods_[rank];
    if (!add(rank, 0, pack_barrier(), {Op::kBarrier, {}})) return;
    pod.in_barrier = true;
    pod.barriers += 1;
    barriers_begun_ = std::max(barriers_begun_, pod.barriers);
    auto& covered = covered_.try_emplace(pod.barriers, domains_.size()).first->second;
    for (uint32_t i = rank * rings_ * world_; i < (rank + 1) * rings_ * world_; ++i)
      covered[i] = {domains_[i].writes, domains_[i].pushed};
  }

  bool completed(uint32_t rank, uint32_t ring, const OrderDomain& flow, uint64_t number) const {
    const RingModel& model = pods_[rank].rings[ring];  // as look() has seen
    return model.producer.head - model.entries.size() > flow.tickets[number % kPlaces];
  }
  static uint64_t place_name(uint32_t rank, uint32_t ring, uint32_t to, uint32_t unit) {
    return uint64_t{rank} << 48 | uint64_t{ring} << 32 | uint64_t{to} << 16 | unit;
  }

  // The first `until` writes of the domain have to be there.
  void require(uint32_t from, uint32_t ring, uint32_t to, uint64_t until, const std::string& why) {
    if (pods_[from].forgotten || pods_[to].forgotten) return;
    OrderDomain& flow = domain(from, ring, to);
    for (; flow.seen < until; ++flow.seen) {
      const uint64_t number = flow.seen + 1;
      Unit* at = &units(to)[target_unit(from, ring, number)];
      for (uint32_t i = 0; i < flow.units[number % kPlaces]; ++i) {
        if (at[i].number == number && at[i].place == place_name(from, ring, to, i)) continue;
        return wrong(why + ", and write " + std::to_string(number) + " of ring " +
                     std::to_string(ring) + " of rank " + std::to_string(from) +
                     " is not at rank " + std::to_string(to));
      }
      // The destination is the receiver's again: from now on nothing else may change it.
      for (uint32_t i = 0; i < flow.units[number % kPlaces]; ++i) at[i] = taken_unit(number);
    }
  }
  static Unit taken_unit(uint64_t number) { return {~number, ~uint64_t{0}}; }
  // Before a later write takes the place of this one, and at the end.
  void require_untouched(uint32_t from, uint32_t ring, uint32_t to, uint64_t number) {
    if (pods_[from].forgotten || pods_[to].forgotten) return;
    const Unit* at = &units(to)[target_unit(from, ring, number)];
    const Unit kept = taken_unit(number);
    for (uint32_t i = 0; i < domain(from, ring, to).units[number % kPlaces]; ++i) {
      if (at[i].number == kept.number && at[i].place == kept.place) continue;
      return wrong("write " + std::to_string(number) + " of ring " + std::to_string(ring) +
                   " of rank " + std::to_string(from) + " came to rank " + std::to_string(to) +
                   " once more, after it was known to be there");
    }
  }

  void look_at_signals(uint32_t rank) {
    for (uint32_t from = 0; from < world_; ++from) {
      if (pods_[from].forgotten) continue;
      for (uint32_t ring = 0; ring < rings_; ++ring) {
        OrderDomain& flow = domain(from, ring, rank);
        look_at_adds(from, ring, rank);
        for (uint32_t word = 0; word < kWords; ++word) {
          const uint64_t now =
              platform::load_acquire(sessions_[rank]->segments().signal(from, ring, word));
          if (now == flow.value[word]) continue;
          if (now < flow.value[word]) return wrong("a signal word shrank");
          flow.value[word] = now;
          auto& said = flow.said[word];
          while (!said.empty() && said.front().value < now) said.pop_front();
          if (said.empty() || said.front().value != now)
            return wrong("a signal word has a value that nobody gave it");
          require(from, ring, rank, said.front().writes, "a signal word grew");
          said.pop_front();
        }
      }
    }
  }

  void look_at_adds(uint32_t from, uint32_t ring, uint32_t rank) {
    OrderDomain& flow = domain(from, ring, rank);
    const uint64_t now = platform::load_acquire(reinterpret_cast<const uint64_t*>(
        sessions_[rank]->regions()[0].memory.data() + word_offset(from, ring)));
    if (now == flow.grown) return;
    if (now < flow.grown || now > flow.added) return wrong("an ADD was done twice");
    for (; flow.grown < now; ++flow.grown) {
      require(from, ring, rank, flow.added_after.front().writes, "an ADD was done");
      flow.added_after.pop_front();
    }
  }

  void look_at_completed(uint32_t rank, uint32_t ring) {
    RingModel& model = pods_[rank].rings[ring];
    const uint64_t first = model.producer.head - model.entries.size();
    for (uint64_t i = platform::load_acquire(model.completed) - first; i > 0; --i) {
      const Entry entry = std::move(model.entries.front());
      model.entries.pop_front();
      if (entry.op == Op::kWrite) {  // the source is the pod's again
        std::memset(static_cast<void*>(&units(rank)[source_unit(ring, entry.to, entry.number)]),
                    0xee, kPlaceUnits * kUnitBytes);
      } else if (entry.op == Op::kDrain) {
        for (uint32_t to = 0; to < world_; ++to)
          require(rank, ring, to, entry.writes[to], "a DRAIN completed");
      } else if (entry.op == Op::kBarrier) {
        leave_barrier(rank);
      }
    }
  }

  void leave_barrier(uint32_t rank) {
    Pod& pod = pods_[rank];
    pod.in_barrier = false;
    for (const Pod& other : pods_) {
      if (!other.forgotten && other.barriers < pod.barriers)
        return wrong("a rank left a barrier before all entered");
    }
    for (uint32_t from = 0; from < world_; ++from) {
      for (uint32_t ring = 0; ring < rings_; ++ring) {
        const auto& [writes, words] =
            covered_[pod.barriers][(size_t{from} * rings_ + ring) * world_ + rank];
        require(from, ring, rank, writes, "a BARRIER completed");
        for (uint32_t word = 0; word < kWords && !pods_[from].forgotten; ++word) {
          if (*sessions_[rank]->segments().signal(from, ring, word) < words[word])
            wrong("a BARRIER completed before a signal of before it");
        }
      }
    }
  }

  std::vector<agent::Session*> sessions_;
  const Rules rules_;
  std::minstd_rand random_;
  uint32_t world_ = 0, rings_ = 0;
  std::vector<OrderDomain> domains_;
  std::vector<Pod> pods_;
  std::map<uint64_t, std::vector<Covered>> covered_;  // by barrier, then as domains_
  uint64_t barriers_begun_ = 0;
  uint64_t commands_ = 0;
  std::string fault_;
};

}  // namespace epfabric::test
