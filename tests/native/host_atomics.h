// Threads of a kernel that change words by ATOMICs, on the CPU; for atomics_test.cc.
#pragma once

#include <cstdint>
#include <vector>

namespace host_kernels {

// As in tests/gpu/atomics.cu.
struct Change {
  uint64_t word, cas, expected, value, old;
};

struct Changes {
  void* pod;          // segment of `rank`
  const void* agent;  // segment
  uint32_t rings, depth, signals, world, rank;
  uint32_t owner;
  uint64_t first_word;
  uint32_t blocks, rounds;
  uint64_t seed, timeout_ns;

  static uint32_t block_threads();
  // By blocks that take the rings in turn: each thread's rounds, one thread after the other. Empty
  // where one failed.
  std::vector<Change> run() const;
};

}  // namespace host_kernels
