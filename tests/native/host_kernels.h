// One rank's low-latency kernels, run on the CPU; for proxied_test.cc. A window is plain memory
// that the ranks of a node share; the rest is the core's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace host_kernels {

struct Shape {
  uint32_t world, experts, tokens, hidden, topk;
};

struct Setup {
  Shape shape;
  uint32_t rank;
  uint32_t blocks;
  bool mask;
  uint64_t timeout_ns;
  void* pod;          // segment
  const void* agent;  // segment
  uint32_t rings, depth, signals;
  void* region;  // region_bytes() of it
  uint64_t region_offset;
  uint32_t first_signal, first_ring;
  uint64_t first_ticket;  // of each ring
};

uint64_t region_bytes(const Shape& shape);

// Of one batch: what goes in and comes out, laid out as DispatchCall and CombineCall say.
struct Batch {
  explicit Batch(const Shape& shape);
  void poison_outputs();

  uint32_t count = 0;
  bool fp8 = false, early = false;  // early: weights go with the tokens
  std::vector<uint16_t> tokens;
  std::vector<int64_t> topk;
  std::vector<float> weights;
  std::vector<int64_t> sent;
  std::vector<uint16_t> received;
  std::vector<float> scales;
  std::vector<int32_t> expert_counts, source_tokens;
  std::vector<int64_t> ranges;
  std::vector<int32_t> receipts, source_messages;
  std::vector<uint16_t> rows, combined;
};

enum Phases : uint32_t { kSend = 1, kReceive = 2, kBoth = 3 };

class Rank {
 public:
  explicit Rank(const Setup& setup);
  ~Rank();
  Rank(const Rank&) = delete;

  unsigned char* window() const;
  // By rank: its window, or nothing where only the agents reach it.
  void connect(const std::vector<unsigned char*>& windows);
  void dispatch(Batch& batch, uint32_t phases);
  void combine(Batch& batch, uint32_t phases);
  void settle();
  // From the next call on, which needs no more memory than the first shape.
  void reshape(const Shape& shape);
  // What was waited for in vain (epfabric::Awaited) << 32 | rank; 0: nothing.
  uint64_t failed() const;
  bool masked(uint32_t rank) const;
  bool lost_ring() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace host_kernels
