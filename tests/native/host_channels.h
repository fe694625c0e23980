// One rank's high-throughput kernels, run on the CPU; for channels_test.cc. As host_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace host_channels {

// What all ranks give alike to a call; row_bytes: of a token.
struct Shape {
  uint32_t world, channels, slots, topk, row_bytes;
};

struct Setup {
  uint32_t world, rank, channels;  // channels: at most
  uint32_t node_ranks;             // as epfabric::ChannelBuffer has them
  uint64_t window_bytes;
  uint64_t timeout_ns;
  void* pod;          // segment
  const void* agent;  // segment
  uint32_t rings, depth, signals;
  void* region;
  uint64_t region_offset;
  uint32_t first_signal, first_ring;
  uint64_t first_ticket;  // of each ring
};

uint64_t region_bytes(const Shape& shape);
uint64_t window_bytes(const Shape& shape);

// What one rank sends, and what it needs to have that answered.
struct Sent {
  Sent(const Shape& shape, uint32_t experts, uint32_t count);

  Shape shape;
  uint32_t experts, count;
  std::vector<uint16_t> tokens;
  std::vector<int64_t> topk;
  std::vector<float> weights;
  std::vector<uint8_t> in_rank;
  std::vector<int32_t> rank_tokens, expert_tokens;
  std::vector<int32_t> positions, channel_firsts, firsts;
  std::vector<uint16_t> biases[2], combined;  // no biases: empty
  std::vector<float> combined_weights;
};

// What came, and the rows that answer it.
struct Received {
  std::vector<uint64_t> told;  // 1, rows, rows of each expert
  std::vector<int32_t> source_tokens;
  std::vector<uint16_t> rows;
  std::vector<int64_t> topk;
  std::vector<float> weights;
  bool weighted = true;
};

class Rank {
 public:
  explicit Rank(const Setup& setup);
  ~Rank();
  Rank(const Rank&) = delete;

  unsigned char* window() const;
  // By rank: its window, or nothing where only the agents reach it.
  void connect(const std::vector<unsigned char*>& windows);
  // room: for rows; 0: as many as come. again: by the routing of the last dispatch of `sent`.
  Received dispatch(Sent& sent, uint32_t room, bool again);
  void combine(Sent& sent, const Received& rows);
  void meet(const Shape& shape);
  // What was waited for in vain (epfabric::ChannelAwaited) << 32 | rank; 0: nothing.
  uint64_t failed() const;
  bool lost_ring() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace host_channels
