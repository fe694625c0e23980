// Ranks that call the high-throughput kernels on the CPU, each with what must come of its calls; of
// a bed as those of callers.h. For channels_test.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "callers.h"
#include "host_channels.h"

namespace epfabric::agent {

using host_channels::Received;
using host_channels::Sent;

// Of a call: experts of all ranks, tokens of one at most.
struct BulkShape : host_channels::Shape {
  uint32_t experts, tokens;
};

inline void fill(std::vector<uint16_t>& values, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  for (uint16_t& value : values) value = bf16_of(normal(random));
}

// What one rank sends in one call, which every rank can make: often one has no tokens, and one has
// all that there may be. turn: the tokens alone depend on it.
inline Sent sent_of(const BulkShape& shape, uint64_t call, uint32_t rank, uint64_t turn = 0) {
  const uint64_t seed = epfabric::test::seed() + call * 1000 + rank;
  std::mt19937_64 random(seed);
  const uint64_t kind = (epfabric::test::seed() + call + rank) % shape.world;
  auto count = static_cast<uint32_t>(random() % (shape.tokens + 1));
  if (kind == 0) count = shape.tokens;
  if (kind == 1 && call % 2 == 0) count = 0;
  Sent sent(shape, shape.experts, count);
  const uint32_t local = shape.experts / shape.world;
  std::vector<int64_t> experts(shape.experts);
  for (uint32_t i = 0; i < shape.experts; ++i) experts[i] = i;
  for (uint32_t token = 0; token < count; ++token) {
    std::shuffle(experts.begin(), experts.end(), random);
    for (uint32_t k = 0; k < shape.topk; ++k) {
      const int64_t expert = random() % 8 == 0 ? -1 : experts[k];
      sent.topk[token * shape.topk + k] = expert;
      sent.weights[token * shape.topk + k] = static_cast<float>(1 + random() % 1000) / 1000;
      if (expert < 0) continue;
      ++sent.expert_tokens[static_cast<uint32_t>(expert)];
      sent.in_rank[token * shape.world + static_cast<uint32_t>(expert) / local] = 1;
    }
    for (uint32_t to = 0; to < shape.world; ++to) {
      sent.rank_tokens[to] += sent.in_rank[token * shape.world + to];
    }
  }
  random.seed(seed + turn * 77);
  fill(sent.tokens, random);
  for (auto& bias : sent.biases) {
    if (random() % 2 == 0) continue;
    bias.resize(sent.tokens.size());
    fill(bias, random);
  }
  return sent;
}

enum Times { kOnce, kAgain };

// One rank's calls. An error is kept: doctest's checks are for one thread.
class BulkCaller {
 public:
  explicit BulkCaller(const host_channels::Setup& setup) : me_(setup.rank), rank(setup) {}

  // A dispatch and a combine, and again by the routing of the first. room: for rows, more than
  // come, or 0.
  void trip(const BulkShape& shape, uint64_t call, Times times, uint32_t room = 0) {
    Sent sent = sent_of(shape, call, me_);
    for (const bool again : {false, true}) {
      if (again && times == kOnce) return;
      if (again) sent.tokens = sent_of(shape, call, me_, 1).tokens;
      Received received = rank.dispatch(sent, room, again);
      answer(shape, received, call, again, room);
      rank.combine(sent, received);
      check_combined(sent, received.weighted);
      if (!wrong_.empty()) return;
    }
  }
  const std::string& wrong() const { return wrong_; }

 private:
  void expect(bool holds, const std::string& what) {
    if (!holds && wrong_.empty()) wrong_ = "rank " + std::to_string(me_) + ": " + what;
  }
  // What a rank's experts make of a row.
  static uint16_t made_by(uint32_t rank, uint16_t value) {
    return bf16_of(float_of(value) * (0.5f + static_cast<float>(rank) / 8));
  }

  // Checks what has come, and puts what the experts make of it into its place.
  void answer(const BulkShape& shape, Received& received, uint64_t call, bool again,
              uint32_t room) {
    expect(rank.failed() == 0, "failed: " + std::to_string(rank.failed()));
    if (!wrong_.empty()) return;
    const uint32_t local = shape.experts / shape.world, width = shape.row_bytes / 2;
    std::vector<uint64_t> each(local);
    size_t row = 0;
    for (uint32_t source = 0; source < shape.world; ++source) {
      const Sent other = sent_of(shape, call, source, again ? 1 : 0);
      for (uint32_t token = 0; token < other.count; ++token) {
        if (other.in_rank[token * shape.world + me_] == 0) continue;
        expect(row < received.source_tokens.size(), "not all rows");
        if (!wrong_.empty()) return;
        expect(static_cast<uint32_t>(received.source_tokens[row]) == token, "another token");
        for (uint32_t k = 0; k < shape.topk && !again; ++k) {
          const int64_t expert = other.topk[token * shape.topk + k] - int64_t{me_} * local;
          const bool here = expert >= 0 && expert < local;
          if (here) ++each[static_cast<uint32_t>(expert)];
          expect(received.topk[row * shape.topk + k] == (here ? expert : -1), "an expert");
          const float weight = here ? other.weights[token * shape.topk + k] : 0;
          expect(received.weights[row * shape.topk + k] == weight, "a weight");
        }
        for (uint32_t i = 0; i < width; ++i) {
          uint16_t& value = received.rows[row * width + i];
          expect(value == other.tokens[token * width + i], "a value of a token");
          value = made_by(me_, value);
        }
        ++row;
      }
    }
    expect(room != 0 ? row <= room : row == received.source_tokens.size(), "the number of rows");
    if (again) return;
    expect(received.told[0] == 1 && received.told[1] == row, "the count of rows");
    for (uint32_t e = 0; e < local; ++e) {
      expect(received.told[2 + e] == each[e], "the rows of an expert");
    }
  }
  void check_combined(const Sent& sent, bool weighted) {
    expect(rank.failed() == 0, "failed: " + std::to_string(rank.failed()));
    const uint32_t width = sent.shape.row_bytes / 2;
    for (uint32_t token = 0; token < sent.count; ++token) {
      for (uint32_t i = 0; i < width; ++i) {
        const uint64_t at = uint64_t{token} * width + i;
        double wanted = 0, size = 0;
        const auto add = [&](uint16_t value) {
          wanted += double{float_of(value)};
          size += std::fabs(double{float_of(value)});
        };
        for (uint32_t to = 0; to < sent.shape.world; ++to) {
          if (sent.in_rank[token * sent.shape.world + to] != 0) add(made_by(to, sent.tokens[at]));
        }
        for (const auto& bias : sent.biases) {
          if (!bias.empty()) add(bias[at]);
        }
        const double error = std::fabs(double{float_of(sent.combined[at])} - wanted);
        expect(error <= size / 100 + 1e-30, "a sum");
      }
      for (uint32_t k = 0; k < sent.shape.topk && weighted; ++k) {
        const uint64_t at = uint64_t{token} * sent.shape.topk + k;
        const float weight = sent.topk[at] < 0 ? 0 : sent.weights[at];
        expect(sent.combined_weights[at] == weight, "a sum of weights");
      }
    }
  }

  const uint32_t me_;
  std::string wrong_;

 public:
  host_channels::Rank rank;
};

struct BulkBed {
  GroupShape group;
  BulkShape shape;  // no call has a larger one
  bool mask = false;
  uint64_t timeout_ns = kForeverNs;
  uint64_t first_ticket = 0;
  bool apart = false;  // also of a node's ranks none reaches another's memory
};

// A rank on a thread of its own.
class BulkCallers {
 public:
  explicit BulkCallers(BulkBed bed) : bed_(std::move(bed)), cores_(sized(bed_)) {
    for (uint32_t rank = 0; rank < bed_.shape.world; ++rank) {
      RankPod& pod = cores_.pods[rank];
      const Segments& segments = pod.session->segments();
      callers.push_back(std::make_unique<BulkCaller>(
          host_channels::Setup{bed_.shape.world, rank, bed_.shape.channels, node_ranks(bed_),
                               host_channels::window_bytes(bed_.shape), bed_.timeout_ns,
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
  ~BulkCallers() { cores_.close(); }

  void on_each(const std::function<void(BulkCaller&)>& work) {
    std::vector<std::thread> threads;
    for (const auto& caller : callers) threads.emplace_back([&] { work(*caller); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& caller : callers) CHECK(caller->wrong() == "");
  }
  RankPod& pod(uint32_t rank) { return cores_.pods[rank]; }
  Core& core(uint32_t node) { return *cores_.cores[node]; }

  std::vector<std::unique_ptr<BulkCaller>> callers;

 private:
  // Where nodes differ each rank is taken for one.
  static uint32_t node_ranks(const BulkBed& bed) {
    const size_t ranks = bed.group.nodes[0].size();
    for (const auto& node : bed.group.nodes) {
      if (node.size() != ranks || bed.apart) return 1;
    }
    return static_cast<uint32_t>(ranks);
  }
  static const GroupShape& sized(BulkBed& bed) {
    bed.group.signals = kSignals;
    bed.group.bytes = kOffset + round_up(host_channels::region_bytes(bed.shape), 4096);
    bed.group.mask = bed.mask;
    return bed.group;
  }

  BulkBed bed_;
  CoreGroup cores_;
};

}  // namespace epfabric::agent
