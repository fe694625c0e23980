// A pod's registered memory: checked, mapped and sealed memfd. Made by Session::register_memfd().
#pragma once

#include "check.h"
#include "memory.h"

namespace epfabric::agent {

inline constexpr uint64_t kRegionAlign = 65536;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr size_t kMaxRegions = 16;

struct Region {
  Mapping memory;
  Extent extent;  // in the rank's offset space
  std::byte* at(uint64_t offset) const { return memory.data() + (offset - extent.begin); }
};

// Maps `fd`, a memfd of `bytes` bytes that its pod has faulted in, then seals it so that the pod
// can neither truncate it nor punch holes. Throws NativeError with what to do about it.
Region map_region(int fd, uint64_t bytes, uint64_t offset);

}  // namespace epfabric::agent
