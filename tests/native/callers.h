// Ranks that call the low-latency kernels on the CPU, each with what must come of its calls; of a
// bed, where some share memory and others are reached through real cores. For proxied_test.cc.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cores.h"
#include "host_kernels.h"
#include "seed.h"

namespace epfabric::agent {

inline constexpr uint64_t kForeverNs = 600'000'000'000;
inline constexpr uint32_t kFirstSignal = 3, kSignals = 8, kFirstRing = 1;
inline constexpr uint64_t kRow = 5;        // dispatches without a combine
inline constexpr uint64_t kOffset = 4096;  // of what the ranks exchange, in their regions

using host_kernels::Batch;
using host_kernels::kBoth;
using host_kernels::kReceive;
using host_kernels::kSend;
using Lost = std::set<uint32_t>;

// What a rank says of its calls, and is waited for: numbers as in epfabric::Awaited.
enum Said : uint32_t { kTokenRoom = 1, kTokens, kWeights, kRows, kRowRoom };
inline uint64_t in_vain(Said what, uint32_t rank) { return uint64_t{what} << 32 | rank; }

inline float float_of(uint16_t bf16) { return __builtin_bit_cast(float, uint32_t{bf16} << 16); }
inline uint16_t bf16_of(float value) {
  const auto bits = __builtin_bit_cast(uint32_t, value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float float_of_fp8(uint32_t code) {
  const int exponent = code >> 3 & 15;
  const float fraction = static_cast<float>(code & 7) / 8;
  const float size =
      exponent == 0 ? std::ldexp(fraction, -6) : std::ldexp(1 + fraction, exponent - 7);
  return code & 0x80 ? -size : size;
}
// What an expert does to a row.
inline uint16_t made_by(uint32_t expert, uint16_t value) {
  return bf16_of(float_of(value) * (0.5f + static_cast<float>(expert % 13) / 16));
}

// The batch of one rank in one call, which every rank can make: often one has no tokens, and one
// has all that there may be.
inline Batch batch_of(const host_kernels::Shape& shape, uint64_t call, uint32_t rank) {
  std::mt19937_64 random(epfabric::test::seed() + call * 1000 + rank);
  Batch batch(shape);
  const uint64_t kind = (epfabric::test::seed() + call + rank) % shape.world;
  batch.count = static_cast<uint32_t>(random() % (shape.tokens + 1));
  if (kind == 0) batch.count = shape.tokens;
  if (kind == 1 && call % 2 == 0) batch.count = 0;
  batch.early = (epfabric::test::seed() + call) % 3 == 0;
  std::normal_distribution<float> normal;
  for (uint16_t& value : batch.tokens) value = bf16_of(normal(random));
  std::vector<int64_t> experts(shape.experts);
  for (uint32_t i = 0; i < shape.experts; ++i) experts[i] = i;
  for (uint32_t token = 0; token < shape.tokens; ++token) {
    std::shuffle(experts.begin(), experts.end(), random);
    for (uint32_t k = 0; k < shape.topk; ++k) {
      batch.topk[token * shape.topk + k] = random() % 8 == 0 ? -1 : experts[k];
      batch.weights[token * shape.topk + k] = static_cast<float>(random() % 1000) / 1000;
    }
  }
  return batch;
}

// One rank's calls, and what must come of them. An error is kept: doctest's checks are for one
// thread.
class Caller {
 public:
  Caller(const host_kernels::Setup& setup) : shape_(setup.shape), me_(setup.rank), rank(setup) {}

  void trip(uint64_t call, bool fp8, const Lost& lost = {}) {
    Batch batch = batch_of(shape_, call, me_);
    batch.fp8 = fp8;
    rank.dispatch(batch, kBoth);
    answer(batch, call, lost);
    rank.combine(batch, kBoth);
    check_combined(batch, lost);
  }
  // Both are sent before either is received.
  void two_trips(uint64_t call) {
    Batch batches[2] = {batch_of(shape_, call, me_), batch_of(shape_, call + 1, me_)};
    for (Batch& batch : batches) rank.dispatch(batch, kSend);
    for (uint64_t i = 0; i < 2; ++i) receive(batches[i], call + i);
    for (Batch& batch : batches) rank.combine(batch, kSend);
    for (Batch& batch : batches) receive_sums(batch);
  }
  // Dispatches alone, each sent before the one before it is received; ready(i) comes in between.
  void dispatches(uint64_t call, const std::function<void(uint64_t)>& ready) {
    std::vector<Batch> batches;
    for (uint64_t i = 0; i < kRow; ++i) {
      batches.push_back(batch_of(shape_, call + i, me_));
      batches.back().fp8 = i % 2 == 1;
      rank.dispatch(batches[i], kSend);
      if (i == 0) continue;
      ready(i);
      receive(batches[i - 1], call + i - 1);
    }
    receive(batches.back(), call + kRow - 1);
  }
  void receive(Batch& batch, uint64_t call) {
    rank.dispatch(batch, kReceive);
    answer(batch, call, {});
  }
  void receive_sums(Batch& batch) {
    rank.combine(batch, kReceive);
    check_combined(batch, {});
  }
  void reshape(const host_kernels::Shape& shape) {
    rank.reshape(shape);
    shape_ = shape;
  }
  uint32_t number() const { return me_; }
  const std::string& wrong() const { return wrong_; }

 private:
  void expect(bool holds, const std::string& what) {
    if (!holds && wrong_.empty()) wrong_ = "rank " + std::to_string(me_) + ": " + what;
  }
  uint32_t local() const { return shape_.experts / shape_.world; }

  // Checks what has come, and fills in what the experts make of it.
  void answer(Batch& batch, uint64_t call, const Lost& lost) {
    expect(rank.failed() == 0, "failed: " + std::to_string(rank.failed()));
    const uint64_t rows = uint64_t{shape_.world} * shape_.tokens;
    std::vector<uint64_t> ends(local());
    for (uint32_t source = 0; source < shape_.world; ++source) {
      const Batch other = batch_of(shape_, call, source);
      for (uint32_t e = 0; e < local(); ++e) {
        const uint32_t expert = me_ * local() + e;
        std::set<uint32_t> wanted;
        for (uint32_t i = 0; i < other.count * shape_.topk && !lost.contains(source); ++i) {
          if (other.topk[i] == expert) wanted.insert(i / shape_.topk);
        }
        const auto range = static_cast<uint64_t>(batch.ranges[e * shape_.world + source]);
        expect(range == (ends[e] << 32 | wanted.size()),
               "not the rows of rank " + std::to_string(source));
        if (!wrong_.empty()) return;
        for (const uint64_t end = ends[e] + wanted.size(); ends[e] < end; ++ends[e]) {
          const auto token = static_cast<uint32_t>(batch.source_tokens[e * rows + ends[e]]);
          expect(wanted.erase(token) == 1, "a token that was not sent here, or twice");
          if (!wrong_.empty()) return;
          answer_row(batch, e, ends[e], other.tokens.data() + uint64_t{token} * shape_.hidden);
        }
      }
    }
    for (uint32_t e = 0; e < local(); ++e) {
      expect(static_cast<uint64_t>(batch.expert_counts[e]) == ends[e], "a count of rows");
    }
  }
  void answer_row(Batch& batch, uint32_t e, uint64_t row, const uint16_t* token) {
    const uint64_t rows = uint64_t{shape_.world} * shape_.tokens;
    const uint64_t begin = (e * rows + row) * shape_.hidden;
    const auto* codes = reinterpret_cast<const uint8_t*>(batch.received.data());
    for (uint32_t i = 0; i < shape_.hidden; ++i) {
      if (batch.fp8) {
        const float scale = batch.scales[(e * shape_.hidden / 128 + i / 128) * rows + row];
        const float value = float_of(token[i]), back = float_of_fp8(codes[begin + i]) * scale;
        const float bound = std::max(std::fabs(value) / 16, scale / 1024) * 1.001f;
        expect(std::fabs(back - value) <= bound, "a value as 8-bit float");
      } else {
        expect(batch.received[begin + i] == token[i], "a token's value");
      }
      batch.rows[begin + i] = made_by(me_ * local() + e, token[i]);
    }
  }
  void check_combined(const Batch& batch, const Lost& lost) {
    expect(rank.failed() == 0, "failed: " + std::to_string(rank.failed()));
    for (uint32_t token = 0; token < batch.count; ++token) {
      for (uint32_t i = 0; i < shape_.hidden; ++i) {
        const uint64_t at = uint64_t{token} * shape_.hidden + i;
        double wanted = 0, size = 0;
        for (uint32_t k = 0; k < shape_.topk; ++k) {
          const int64_t expert = batch.topk[token * shape_.topk + k];
          if (expert < 0 || lost.contains(static_cast<uint32_t>(expert) / local())) continue;
          const auto made = made_by(static_cast<uint32_t>(expert), batch.tokens[at]);
          const double part = double{batch.weights[token * shape_.topk + k]} * float_of(made);
          wanted += part;
          size += std::fabs(part);
        }
        // Two roundings to bfloat16 and float sums.
        expect(std::fabs(float_of(batch.combined[at]) - wanted) <= size / 128 + 1e-30, "a sum");
      }
    }
  }

  host_kernels::Shape shape_;
  const uint32_t me_;
  std::string wrong_;

 public:
  host_kernels::Rank rank;
};

struct Bed {
  GroupShape group;
  host_kernels::Shape shape;
  uint32_t blocks = 1;
  bool mask = false;
  uint64_t timeout_ns = kForeverNs;
  uint64_t first_ticket = 0;
  bool apart = false;  // also of a node's ranks none reaches another's memory
};

// A rank on a thread of its own: its batches are apart, and only the kernels meet.
class Callers {
 public:
  explicit Callers(Bed bed) : bed_(std::move(bed)), cores_(sized(bed_)) {
    for (uint32_t rank = 0; rank < bed_.shape.world; ++rank) {
      RankPod& pod = cores_.pods[rank];
      const Segments& segments = pod.session->segments();
      callers.push_back(std::make_unique<Caller>(
          host_kernels::Setup{bed_.shape, rank, bed_.blocks, bed_.mask, bed_.timeout_ns,
                              const_cast<PodHeader*>(segments.pod_header()), segments.header(),
                              bed_.group.rings, bed_.group.depth, kSignals, pod.memory() + kOffset,
                              kOffset, kFirstSignal, kFirstRing, bed_.first_ticket}));
    }
    for (const auto& ranks : bed_.group.nodes) {
      std::vector<unsigned char*> windows(bed_.shape.world);
      for (const uint32_t rank : ranks) windows[rank] = callers[rank]->rank.window();
      for (const uint32_t rank : ranks) {
        std::vector<unsigned char*> own(bed_.shape.world);
        own[rank] = windows[rank];
        callers[rank]->rank.connect(bed_.apart ? own : windows);
      }
    }
  }
  ~Callers() { cores_.close(); }

  void on_each(const std::function<void(Caller&)>& work, const Lost& but = {}) {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < callers.size(); ++rank) {
      if (!but.contains(rank)) threads.emplace_back([&, rank] { work(*callers[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& caller : callers) CHECK(caller->wrong() == "");
  }
  RankPod& pod(uint32_t rank) { return cores_.pods[rank]; }
  // False when `from` has not said so of `calls` calls in time.
  bool hears(uint32_t rank, uint32_t from, Said what, uint64_t calls) {
    const uint32_t ring = kFirstRing + (rank + from) % (bed_.group.rings - kFirstRing);
    const uint64_t* word =
        pod(rank).session->segments().signal(from, ring, kFirstSignal + what - kTokenRoom);
    return wait_at_least(word, calls, pod(rank).aborts(), kTestLimitNs) == Waited::kDone;
  }
  Core& core(uint32_t node) { return *cores_.cores[node]; }
  uint64_t refused() const {
    uint64_t count = 0;
    for (const RankPod& pod : cores_.pods) {
      for (uint32_t ring = 0; ring < bed_.group.rings; ++ring) {
        count += platform::load_acquire(&pod.session->segments().counters(ring)->refused);
      }
    }
    return count;
  }

  std::vector<std::unique_ptr<Caller>> callers;

 private:
  static const GroupShape& sized(Bed& bed) {
    bed.group.signals = kSignals;
    bed.group.bytes = kOffset + round_up(host_kernels::region_bytes(bed.shape), 4096);
    bed.group.mask = bed.mask;
    return bed.group;
  }

  Bed bed_;
  CoreGroup cores_;
};

}  // namespace epfabric::agent
