// What only threads of a GPU do, on NVIDIA and AMD; for push.cuh. A host program that runs kernels
// itself has a header of its own for it, and for platform_block.cuh: EPF_HOST_PLATFORM. A warp is
// 32 threads on NVIDIA and 64 on AMD; the functions that speak of a warp are called by all of its
// threads together.
#pragma once

#include "platform.h"

#if defined(EPF_HOST_PLATFORM)
#include EPF_HOST_PLATFORM
#else

namespace epfabric::platform {

#if defined(__HIP__)
inline constexpr uint32_t kWarpSize = 64;
#else
inline constexpr uint32_t kWarpSize = 32;
#endif

// The caller's place in its warp.
EPF_DEVICE inline uint32_t lane() {
#if defined(EPF_CUDA_CODE)
  uint32_t id;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(id));
  return id;
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#else
  return 0;
#endif
}

// Bit i: what lane i says.
EPF_DEVICE inline uint64_t ballot(bool says) {
#if defined(EPF_CUDA_CODE)
  return __ballot_sync(~0u, says);
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_ballot_w64(says);
#else
  return says;
#endif
}

// The value of lane `from`, which is the same for all.
EPF_DEVICE inline uint64_t broadcast(uint64_t value, uint32_t from) {
#if defined(EPF_CUDA_CODE)
  return __shfl_sync(~0u, static_cast<unsigned long long>(value), static_cast<int>(from));
#elif defined(EPF_HIP_CODE)
  const auto half = [from](uint64_t bits) {
    return static_cast<uint32_t>(
        __builtin_amdgcn_readlane(static_cast<int>(bits), static_cast<int>(from)));
  };
  return uint64_t{half(value >> 32)} << 32 | half(value & 0xffffffffu);
#else
  (void)from;
  return value;
#endif
}

// What any lane did before is seen by every lane after.
EPF_DEVICE inline void warp_barrier() {
#if defined(EPF_CUDA_CODE)
  __syncwarp();
#elif defined(EPF_HIP_CODE)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#endif
}

// Words in GPU memory that only threads of this GPU share: relaxed, in the GPU's own scope.
EPF_DEVICE inline uint64_t fetch_add_device(uint64_t* word, uint64_t value) {
#if defined(EPF_CUDA_CODE)
  uint64_t before;
  asm volatile("atom.relaxed.gpu.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(word), "l"(value)
               : "memory");
  return before;
#elif defined(EPF_HIP_CODE)
  return __hip_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  return *word + value;
#endif
}

// Orders what the caller did before against what it does after, for threads of this GPU; together
// with a release or acquire at system scope by one of them also for others.
EPF_DEVICE inline void fence_device() {
#if defined(EPF_CUDA_CODE)
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#elif defined(EPF_HIP_CODE)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "agent");
#endif
}

EPF_DEVICE inline uint64_t load_device(const uint64_t* word) {
#if defined(EPF_CUDA_CODE)
  uint64_t value;
  asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#elif defined(EPF_HIP_CODE)
  return __hip_atomic_load(word, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  return *word;
#endif
}

EPF_DEVICE inline void store_device(uint64_t* word, uint64_t value) {
#if defined(EPF_CUDA_CODE)
  asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#elif defined(EPF_HIP_CODE)
  __hip_atomic_store(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  *word = value;
#endif
}

// Puts `value` where `expected` is; what was there before.
EPF_DEVICE inline uint64_t exchange_device(uint64_t* word, uint64_t expected, uint64_t value) {
#if defined(EPF_CUDA_CODE)
  uint64_t before;
  asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(word), "l"(expected), "l"(value)
               : "memory");
  return before;
#elif defined(EPF_HIP_CODE)
  __hip_atomic_compare_exchange_strong(word, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
#else
  const uint64_t before = *word;
  if (before == expected) *word = value;
  return before;
#endif
}

EPF_DEVICE inline uint32_t count_bits(uint64_t bits) {
#if defined(EPF_CUDA_CODE)
  return static_cast<uint32_t>(__popcll(bits));
#else
  return static_cast<uint32_t>(__builtin_popcountll(bits));
#endif
}

// Place of the lowest bit that is set; `bits` is not 0.
EPF_DEVICE inline uint32_t lowest_bit(uint64_t bits) {
#if defined(EPF_CUDA_CODE)
  return static_cast<uint32_t>(__ffsll(static_cast<long long>(bits))) - 1;
#else
  return static_cast<uint32_t>(__builtin_ctzll(bits));
#endif
}

}  // namespace epfabric::platform

#endif  // EPF_HOST_PLATFORM
