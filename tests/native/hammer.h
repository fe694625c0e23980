// ATOMICs of many ranks on the same words, and what has to come of them: each takes effect once, in
// one order that every ring's own order is part of, behind its ring's earlier writes. Whoever
// applies them; for the C++ tests of each.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "cores.h"
#include "seed.h"

namespace epfabric::agent {

inline constexpr uint64_t kStamps = 4096;  // where writes go: 16 B for each (rank, round)
inline constexpr uint32_t kRounds = 300;

struct Done {
  bool cas;
  uint64_t expected, value, old;  // value: the addend or the new value

  bool effect() const { return !cas || old == expected; }
  uint64_t after() const { return cas ? value : old + value; }
};

// Pushes atomics on `word` of `owner`, several at a time, and keeps what came back.
class Hammer {
 public:
  Hammer(RankPod& pod, uint32_t ring, uint32_t owner, uint64_t word, uint32_t ops, uint64_t seed)
      : pod_(pod), ring_(ring), owner_(owner), word_(word), ops_(ops), random_(seed) {}

  void run() {
    uint64_t last = 0;
    while (done_.size() < ops_) {
      std::vector<std::pair<uint64_t, Done>> batch;
      for (uint64_t n = 1 + random_() % 6; n > 0; --n) {
        // What was seen last is often still there, a draw never is; sums wrap at 2^64.
        const bool cas = random_() % 2 == 0;
        batch.push_back(push({cas, random_() % 8 ? last : random_(), random_(), 0}));
      }
      if (batch.back().first == kNoTicket) return;
      const uint64_t end = batch.back().first + (batch.back().second.cas ? 1 : 0);
      if (!pod_.wait(ring_, end, pod_.aborts())) return;
      for (auto& [ticket, op] : batch) {
        const AtomicResult& result = pod_.session->segments().results(ring_)[ticket % 16];
        if (platform::load_acquire(&result.done) != ticket + 1) return;
        op.old = platform::load_relaxed(&result.old);
        last = op.effect() ? op.after() : op.old;
        done_.push_back(op);
      }
    }
  }
  const std::vector<Done>& done() const { return done_; }
  bool whole() const { return done_.size() >= ops_; }

 private:
  std::pair<uint64_t, Done> push(const Done& op) {
    const uint64_t ticket = pod_.rings[ring_].head;
    Slot slots[2];
    op.cas ? pack_cas(owner_, word_, op.expected, op.value, slots)
           : pack_atomic(Op::kAdd, owner_, word_, op.value, slots[0]);
    const bool pushed = pod_.push(ring_, slots, op.cas ? 2 : 1, pod_.aborts());
    return {pushed ? ticket : kNoTicket, op};
  }

  RankPod& pod_;
  const uint32_t ring_, owner_;
  const uint64_t word_;
  const uint32_t ops_;
  std::mt19937_64 random_;
  std::vector<Done> done_;
};

inline uint64_t* word_of(const RankPod& pod, uint64_t word) {
  return reinterpret_cast<uint64_t*>(pod.memory()) + word;
}

// The operations are one chain from 0 to what the word holds: none lost, none twice. Values are
// draws of 64 bits, so that each stands in the chain once. `orders`: operations that followed each
// other. How many CAS stored their value, and how many did not.
struct Swaps {
  size_t stored = 0, missed = 0;
};
inline Swaps check_chain(const std::vector<std::vector<Done>>& orders, uint64_t held) {
  std::map<uint64_t, uint64_t> next;  // value before -> after
  size_t effects = 0;
  for (const auto& order : orders) {
    for (const Done& op : order) {
      if (!op.effect()) continue;
      effects += 1;
      next[op.old] = op.after();
    }
  }
  REQUIRE(next.size() == effects);  // each value was handed out to one that changed it
  std::map<uint64_t, size_t> place{{0, 0}};
  uint64_t value = 0;
  for (size_t at = 1; at <= effects; ++at) {
    REQUIRE(next.contains(value));
    value = next[value];
    place[value] = at;
  }
  CHECK(value == held);
  Swaps swaps;
  for (const auto& order : orders) {
    size_t before = 0;
    for (const Done& op : order) {
      REQUIRE(place.contains(op.old));  // also where it found another value than it expected
      REQUIRE(place[op.old] >= before);
      before = place[op.old] + (op.effect() ? 1 : 0);
      swaps.stored += op.cas && op.effect();
      swaps.missed += !op.effect();
    }
  }
  return swaps;
}

inline void check_chain(const std::vector<std::unique_ptr<Hammer>>& hammers, uint64_t held) {
  std::vector<std::vector<Done>> orders;
  for (const auto& hammer : hammers) {
    REQUIRE(hammer->whole());
    orders.push_back(hammer->done());
  }
  const Swaps swaps = check_chain(orders, held);
  CHECK(swaps.stored > 0);
  CHECK(swaps.missed > 0);
}

inline uint64_t stamp_of(uint64_t rank, uint64_t round) {
  return kStamps + (1 + rank * kRounds + round) * kUnitBytes;
}

// Runs each call on a thread of its own, and `meanwhile` until all have ended.
template <class Meanwhile>
void run_all(const std::vector<std::function<void()>>& calls, Meanwhile&& meanwhile) {
  std::atomic<size_t> left{calls.size()};
  std::vector<std::thread> threads;
  for (const auto& call : calls) {
    threads.emplace_back([&left, &call] {
      call();
      left -= 1;
    });
  }
  while (left > 0) meanwhile();
  for (std::thread& thread : threads) thread.join();
}

// Of each writer: a stamp by WRITE, then ADD 1 to its own sixteenth of a word. Who sees the count
// must see the stamp.
template <class Meanwhile>
void check_order(std::vector<RankPod>& pods, uint32_t owner, const std::vector<uint32_t>& writers,
                 Meanwhile&& meanwhile) {
  constexpr uint64_t kWord = 64;
  std::vector<std::function<void()>> calls;
  for (const uint32_t rank : writers) {
    calls.emplace_back([&pods, owner, rank] {
      RankPod& pod = pods[rank];
      for (uint64_t round = 1; round <= kRounds; ++round) {
        std::memcpy(pod.memory() + kStamps, &round, 8);
        Slot slots[2];
        const auto to = static_cast<uint32_t>(stamp_of(rank, round) / kUnitBytes);
        pack_write({owner, kStamps / kUnitBytes, to, 1, 0, 0}, slots[0]);
        pack_atomic(Op::kAdd, owner, kWord, uint64_t{1} << 16 * rank, slots[1]);
        if (!pod.push(0, slots, 2, pod.aborts())) return;
        if (!pod.wait(0, pod.rings[0].head - 1, pod.aborts())) return;
      }
    });
  }
  const RankPod& pod = pods[owner];
  bool late = false;
  run_all(calls, [&] {
    meanwhile();
    const uint64_t counts = platform::load_acquire(word_of(pod, kWord));
    for (const uint32_t rank : writers) {
      const uint64_t count = counts >> 16 * rank & 0xffff;
      uint64_t stamp = 0;
      if (count > 0) std::memcpy(&stamp, pod.memory() + stamp_of(rank, count), 8);
      late = late || stamp != count;
    }
  });
  CHECK_FALSE(late);
  const uint64_t counts = *word_of(pod, kWord);
  for (const uint32_t rank : writers) CHECK((counts >> 16 * rank & 0xffff) == kRounds);
}

// Every rank's rings change two words, the first rank's and the last one's.
template <class Meanwhile>
void check_atomics(std::vector<RankPod>& pods, uint32_t ops, Meanwhile&& meanwhile) {
  const uint64_t seed = epfabric::test::seed();
  std::vector<std::vector<std::unique_ptr<Hammer>>> by_word(2);
  std::vector<std::function<void()>> calls;
  for (uint32_t rank = 0; rank < pods.size(); ++rank) {
    for (uint32_t ring = 0; ring < pods[rank].rings.size(); ++ring) {
      const uint32_t word = ring % 2;
      const uint32_t owner = word == 0 ? 0 : static_cast<uint32_t>(pods.size()) - 1;
      by_word[word].push_back(std::make_unique<Hammer>(pods[rank], ring, owner, 100 + word, ops,
                                                       seed + 64 * rank + ring));
      calls.emplace_back([one = by_word[word].back().get()] { one->run(); });
    }
  }
  run_all(calls, meanwhile);
  check_chain(by_word[0], *word_of(pods.front(), 100));
  check_chain(by_word[1], *word_of(pods.back(), 101));
  check_order(pods, 0, {1, 2}, meanwhile);
  for (const RankPod& pod : pods) {
    for (const auto& ring : pod.session->rings()) CHECK(ring->idle());
  }
}

}  // namespace epfabric::agent
