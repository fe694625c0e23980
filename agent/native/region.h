// A pod's registered memory: a memfd that is checked, mapped and sealed, or a GPU's, of which the
// agent has the dma-buf alone. Made by Session::register_memfd() and register_dmabuf().
#pragma once

#include "check.h"
#include "memory.h"

namespace epfabric::agent {

inline constexpr uint64_t kRegionAlign = 65536;
inline constexpr uint64_t kPageBytes = 4096;
inline constexpr size_t kMaxRegions = 16;

struct Region {
  Mapping memory;  // of a GPU's: addresses alone, by which NICs know it; no CPU may touch them
  Extent extent;   // in the rank's offset space
  FileDescriptor dmabuf{};
  std::byte* at(uint64_t offset) const { return memory.data() + (offset - extent.begin); }
  bool foreign() const { return dmabuf.get() >= 0; }
};

// Maps `fd`, a memfd of `bytes` bytes that its pod has faulted in, then seals it so that the pod
// can neither truncate it nor punch holes. Throws NativeError with what to do about it.
Region map_region(int fd, uint64_t bytes, uint64_t offset);

// Keeps `fd`, a dma-buf of at least `bytes` bytes. Throws NativeError.
Region keep_dmabuf(int fd, uint64_t bytes, uint64_t offset);

}  // namespace epfabric::agent
