// Old and new data: ranks write words that carry their round into each other's memory, and nobody
// may read an older one after a signal, a DRAIN or a BARRIER, nor ever one that was not written.
// EPFABRIC_STRESS_S: seconds for each case, in place of the short default.
#include "versions.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "cores.h"
#include "seed.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kForEver = ~uint64_t{0};

// What the ranks' threads share beside the memory under test.
struct Trial {
  CoreGroup& group;
  const Areas& areas;
  uint64_t seed;
  uint64_t end_ns;
  std::atomic<uint64_t> last{kForEver};        // the last round; set by rank 0 before its barrier
  std::vector<std::atomic<uint64_t>> drained;  // by rank and ring: the round of the last DRAIN
  uint64_t ended = 0;                          // not 0: a rank failed, every wait ends
  std::mutex mutex;
  std::string fault;  // the first one

  Trial(CoreGroup& of, const Areas& divided, uint64_t seeded, uint64_t until_ns)
      : group(of),
        areas(divided),
        seed(seeded),
        end_ns(until_ns),
        drained(divided.world * divided.rings) {}

  bool fail(const std::string& what) {
    const std::lock_guard lock(mutex);
    if (fault.empty()) fault = what;
    platform::store_release(&ended, 1);
    return false;
  }
};

// One rank: writes its plan of each round, reads what the others' plans say.
class Rank {
 public:
  Rank(Trial& trial, uint32_t rank)
      : trial_(trial),
        areas_(trial.areas),
        me_(rank),
        pod_(trial.group.pods[rank]),
        ends_{&trial.ended, &pod_.session->segments().header()->abort},
        random_(trial.seed, 0, rank, ~0u),
        words_(reinterpret_cast<uint64_t*>(pod_.memory())),
        expected_(uint64_t{areas_.areas()} * 2),
        totals_(areas_.world * areas_.rings * areas_.signals),
        next_(plans(1)) {}

  void run() {
    for (uint64_t round = 1; round <= trial_.last.load(); ++round) {
      now_ = std::move(next_);
      next_ = plans(round + 1);
      if (me_ == 0 && platform::clock_ns() > trial_.end_ns) trial_.last.store(round);
      if (push_all(round) && finish_and_read(round) && meet() && check_all(round)) continue;
      std::string why;
      for (const auto& core : trial_.group.cores) why += " [" + core->failure(1) + "]";
      trial_.fail("rank " + std::to_string(me_) + " waited in vain in round " +
                  std::to_string(round) + ":" + why);
      return;
    }
  }

 private:
  using Plans = std::vector<Plan>;  // by rank and ring

  Plans plans(uint64_t round) const {
    Plans out;
    for (uint32_t rank = 0; rank < areas_.world; ++rank) {
      for (uint32_t ring = 0; ring < areas_.rings; ++ring)
        out.push_back(plan_of(areas_, trial_.seed, round, rank, ring));
    }
    return out;
  }
  size_t at(uint32_t rank, uint32_t ring) const { return rank * areas_.rings + ring; }

  // Fills the buffers, then pushes the rings' commands in turns of random batches.
  bool push_all(uint64_t round) {
    std::vector<size_t> pushed(areas_.rings);
    for (uint32_t ring = 0; ring < areas_.rings; ++ring) {
      const Plan& plan = now_[at(me_, ring)];
      for (size_t i = 0; i < plan.portions.size(); ++i) {
        const Portion& portion = plan.portions[i];
        uint64_t* buffer = words_ + uint64_t{areas_.buffer(ring) + portion.from} * 2;
        const uint64_t half = uint64_t{areas_.area(round, me_, ring) + portion.to} * 2;
        for (uint64_t w = 0; w < uint64_t{portion.units} * 2; ++w)
          buffer[w] = word_of(round, i, me_, ring, half + w);
      }
    }
    for (uint32_t left = areas_.rings; left > 0;) {
      const uint32_t ring = random_.below(areas_.rings);
      const std::vector<Portion>& portions = now_[at(me_, ring)].portions;
      if (pushed[ring] > portions.size()) continue;
      Slot batch[kMaxBatch];
      uint32_t count = 0;
      for (uint32_t most = 1 + random_.below(kMaxBatch); count < most; ++count) {
        if (pushed[ring] + count == portions.size()) break;
        batch[count] = slot_of(portions[pushed[ring] + count], round, ring);
      }
      if (count > 0 && !pod_.push(ring, batch, count, ends_)) return false;
      pushed[ring] += count;
      if (pushed[ring] < portions.size()) continue;
      pushed[ring] += 1;  // so that it is not looked at again
      left -= 1;
    }
    return true;
  }

  Slot slot_of(const Portion& portion, uint64_t round, uint32_t ring) const {
    Slot slot{};
    const bool packed = portion.units == 0
                            ? pack_signal(portion.rank, portion.signal, portion.advance, slot)
                            : pack_write({portion.rank, areas_.buffer(ring) + portion.from,
                                          areas_.area(round, me_, ring) + portion.to, portion.units,
                                          portion.signal, portion.advance},
                                         slot);
    if (!packed) std::abort();
    return slot;
  }

  // The own rings' ends and the others' signals in random order; what they drained afterwards.
  bool finish_and_read(uint64_t round) {
    const bool looks = !hurries(trial_.seed, round, me_);
    std::vector<size_t> order(now_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    for (const size_t i : order) {
      const auto rank = static_cast<uint32_t>(i / areas_.rings);
      const auto ring = static_cast<uint32_t>(i % areas_.rings);
      if (rank == me_ && !finish(round, ring)) return false;
      if (!read_signals(round, rank, ring, looks)) return false;
    }
    for (const size_t i : order) {
      if (!looks || !now_[i].drained || random_.one_in(2)) continue;
      for (uint32_t look = 0; trial_.drained[i].load(std::memory_order_acquire) < round; ++look) {
        if (ends_.set()) return false;
        platform::pause(look);
      }
      const auto rank = static_cast<uint32_t>(i / areas_.rings);
      if (!check_area(round, rank, static_cast<uint32_t>(i % areas_.rings), "a DRAIN"))
        return false;
    }
    return true;
  }

  bool finish(uint64_t round, uint32_t ring) {
    const Plan& plan = now_[at(me_, ring)];
    Producer& producer = pod_.rings[ring];
    const Slot drain = pack_drain(producer.head);
    if (plan.drained && !pod_.push(ring, &drain, 1, ends_)) return false;
    if (!plan.waited || producer.head == 0) return true;
    if (!pod_.wait(ring, producer.head - 1, ends_)) return false;
    // The source may be reused: none of this may ever arrive.
    for (const Portion& portion : plan.portions) {
      std::fill_n(words_ + uint64_t{areas_.buffer(ring) + portion.from} * 2,
                  uint64_t{portion.units} * 2, kPoison);
    }
    if (plan.drained) trial_.drained[at(me_, ring)].store(round, std::memory_order_release);
    return true;
  }

  // Writes the round's portions of one writer's ring into what is expected.
  void expect(uint64_t round, uint32_t rank, uint32_t ring, size_t portions) {
    const Plan& plan = now_[at(rank, ring)];
    for (size_t i = 0; i < portions; ++i) {
      if (plan.portions[i].rank != me_) continue;
      const uint64_t half = uint64_t{areas_.area(round, rank, ring) + plan.portions[i].to} * 2;
      for (uint64_t w = half; w < half + uint64_t{plan.portions[i].units} * 2; ++w)
        expected_[w] = word_of(round, i, rank, ring, w);
    }
  }

  // Adds the ring's signals up; if it `looks`, waits for them and reads all that came before each.
  bool read_signals(uint64_t round, uint32_t rank, uint32_t ring, bool looks) {
    const Plan& plan = now_[at(rank, ring)];
    for (size_t i = 0; i < plan.portions.size(); ++i) {
      const Portion& portion = plan.portions[i];
      if (portion.rank != me_ || portion.advance == 0) continue;
      const uint64_t value = total(rank, ring, portion.signal) += portion.advance;
      const uint64_t* word = pod_.session->segments().signal(rank, ring, portion.signal);
      if (!looks || random_.one_in(4)) continue;
      if (wait_at_least(word, value, ends_, kTestLimitNs) != Waited::kDone) return false;
      if (plan.overlaps) continue;  // a later write of this round may be at work
      for (size_t j = 0; j <= i; ++j) {
        if (plan.portions[j].rank == me_ && !check_piece(round, rank, ring, j)) return false;
      }
    }
    return true;
  }

  bool check_piece(uint64_t round, uint32_t rank, uint32_t ring, size_t number) {
    const Portion& portion = now_[at(rank, ring)].portions[number];
    const uint64_t half = uint64_t{areas_.area(round, rank, ring) + portion.to} * 2;
    for (uint64_t w = half; w < half + uint64_t{portion.units} * 2; ++w) {
      const uint64_t right = word_of(round, number, rank, ring, w);
      if (words_[w] != right) return wrong("its signal", round, words_[w], right);
    }
    return true;
  }

  bool check_area(uint64_t round, uint32_t rank, uint32_t ring, const char* after) {
    expect(round, rank, ring, now_[at(rank, ring)].portions.size());
    const uint64_t half = uint64_t{areas_.area(round, rank, ring)} * 2;
    const uint64_t count = uint64_t{areas_.units} * 2;
    if (std::memcmp(words_ + half, &expected_[half], count * 8) == 0) return true;
    for (uint64_t w = half; w < half + count; ++w) {
      if (words_[w] != expected_[w]) return wrong(after, round, words_[w], expected_[w]);
    }
    return trial_.fail("a word changed between two looks");
  }

  // Rings enter the barrier with writes under way: it has to wait for them itself.
  bool meet() {
    const Slot barrier = pack_barrier();
    return pod_.push(0, &barrier, 1, ends_) && pod_.wait(0, pod_.rings[0].head - 1, ends_);
  }

  bool check_all(uint64_t round) {
    for (uint32_t rank = 0; rank < areas_.world; ++rank) {
      for (uint32_t ring = 0; ring < areas_.rings; ++ring) {
        if (!check_area(round, rank, ring, "a BARRIER")) return false;
        if (!check_totals(round, rank, ring) || !check_under_way(round + 1, rank, ring))
          return false;
      }
    }
    return true;
  }

  // Every signal of the round is there, and none beyond the next one's.
  bool check_totals(uint64_t round, uint32_t rank, uint32_t ring) {
    std::vector<uint64_t> most(areas_.signals);
    for (uint32_t i = 0; i < areas_.signals; ++i) most[i] = total(rank, ring, i);
    for (const Portion& portion : next_[at(rank, ring)].portions) {
      if (portion.rank == me_) most[portion.signal] += portion.advance;
    }
    for (uint32_t i = 0; i < areas_.signals; ++i) {
      const uint64_t value = platform::load_acquire(pod_.session->segments().signal(rank, ring, i));
      if (value >= total(rank, ring, i) && value <= most[i]) continue;
      return trial_.fail("after a BARRIER in round " + std::to_string(round) + " a signal is " +
                         std::to_string(value) + ", not " + std::to_string(total(rank, ring, i)) +
                         " to " + std::to_string(most[i]));
    }
    return true;
  }

  // Samples words that the next round may be writing: each byte is an older or a newer legal one.
  // Not under the thread sanitizer: these looks are races by intent.
  bool check_under_way(uint64_t round, uint32_t rank, uint32_t ring) {
#if !defined(__SANITIZE_THREAD__)
    const std::vector<Portion>& portions = next_[at(rank, ring)].portions;
    for (uint32_t tries = 0; tries < 16; ++tries) {
      const uint64_t half =
          uint64_t{areas_.area(round, rank, ring) + random_.below(areas_.units)} * 2;
      std::vector<uint64_t> legal{expected_[half]};
      for (size_t i = 0; i < portions.size(); ++i) {
        const uint64_t begin = uint64_t{areas_.area(round, rank, ring) + portions[i].to} * 2;
        if (portions[i].rank != me_ || half < begin || half >= begin + portions[i].units * 2)
          continue;
        legal.push_back(word_of(round, i, rank, ring, half));
      }
      const uint64_t word = platform::load_relaxed(words_ + half);
      for (unsigned byte = 0; byte < 64; byte += 8) {
        const auto same = [&](uint64_t good) { return ((good ^ word) >> byte & 0xff) == 0; };
        if (std::any_of(legal.begin(), legal.end(), same)) continue;
        return wrong("looking too early", round, word, legal.back());
      }
    }
#else
    (void)round, (void)rank, (void)ring;
#endif
    return true;
  }

  uint64_t& total(uint32_t rank, uint32_t ring, uint32_t signal) {
    return totals_[at(rank, ring) * areas_.signals + signal];
  }

  bool wrong(const char* after, uint64_t round, uint64_t got, uint64_t right) {
    char text[200];
    std::snprintf(
        text, sizeof(text),
        "after %s in round %llu rank %u read %016llx (of round %llu) in place of %016llx "
        "(of round %llu)",
        after, static_cast<unsigned long long>(round), me_, static_cast<unsigned long long>(got),
        static_cast<unsigned long long>(round_of(got)), static_cast<unsigned long long>(right),
        static_cast<unsigned long long>(round_of(right)));
    return trial_.fail(text);
  }

  Trial& trial_;
  const Areas& areas_;
  const uint32_t me_;
  RankPod& pod_;
  const AbortWords ends_;
  Draw random_;
  uint64_t* const words_;           // own region
  std::vector<uint64_t> expected_;  // what the areas of the own region hold
  std::vector<uint64_t> totals_;    // signals, by writer, ring and word
  Plans now_;
  Plans next_;
};

void run_trial(const char* name, GroupShape shape, Areas areas) {
  const char* longer = std::getenv("EPFABRIC_STRESS_S");
  const double seconds = longer != nullptr ? std::atof(longer) : 1.5;
  areas.world = 0;
  for (const auto& ranks : shape.nodes) areas.world += static_cast<uint32_t>(ranks.size());
  areas.rings = shape.rings;
  areas.signals = shape.signals;
  shape.bytes = areas.bytes();
  CoreGroup group(shape);
  Trial trial(group, areas, test::seed(),
              platform::clock_ns() + static_cast<uint64_t>(seconds * 1'000'000'000));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < areas.world; ++rank)
    threads.emplace_back([&trial, rank] { Rank(trial, rank).run(); });
  for (std::thread& thread : threads) thread.join();
  std::printf("versions_test %s: %llu rounds\n", name,
              static_cast<unsigned long long>(trial.last.load()));
  INFO("seed " << trial.seed);
  CHECK(trial.fault == "");
  group.close();
}

constexpr Areas kSmall{0, 0, 0, 2048, 12};
constexpr Areas kLarge{0, 0, 0, kMaxUnits, 4};

GroupShape shape_of(std::vector<std::vector<uint32_t>> nodes, std::vector<uint32_t> proxies,
                    uint32_t rings, const char* provider) {
  GroupShape shape;
  shape.nodes = std::move(nodes);
  shape.proxies = std::move(proxies);
  shape.rings = rings;
  shape.settings.provider = provider;
  return shape;
}

}  // namespace

TEST_CASE("no word is older than its barrier, DRAIN or signal, or newer than legal: same node") {
  run_trial("loopback", shape_of({{0, 1, 2}}, {2}, 4, ""), kSmall);
}

TEST_CASE("nor where writes are up to 16 MiB: same node") {
  run_trial("loopback, large", shape_of({{0, 1}}, {1}, 1, ""), kLarge);
}

TEST_CASE("nor where both ends of the network are seen, and its writes are split") {
  run_trial("twin", shape_of({{0, 1}, {2}}, {2, 3}, 4, "twin"), kSmall);
}

// The thread sanitizer cannot see into libfabric.
#if !defined(__SANITIZE_THREAD__)
TEST_CASE("nor over tcp, with another number of proxies at each end") {
  run_trial("tcp", shape_of({{0, 1}, {2}}, {2, 3}, 4, "tcp;ofi_rxm"), kSmall);
}

TEST_CASE("nor over tcp where writes are up to 16 MiB") {
  run_trial("tcp, large", shape_of({{0}, {1}}, {1, 1}, 1, "tcp;ofi_rxm"), kLarge);
}
#endif
