// What the threads of one block share, on NVIDIA and AMD; for kernels that use whole blocks. Every
// function is called by all threads of the block, or of the warp where it says so.
#pragma once

#include "platform_gpu.cuh"

#if defined(EPF_HOST_PLATFORM)
#include EPF_HOST_PLATFORM
#else

#if defined(__HIP__)
#define EPF_KERNEL extern "C" __attribute__((global))
#define EPF_SHARED __attribute__((shared))
#define EPF_LAUNCH_BOUNDS(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define EPF_KERNEL extern "C" __global__
#define EPF_SHARED __shared__
#define EPF_LAUNCH_BOUNDS(threads) __launch_bounds__(threads, 1)
#endif

namespace epfabric::platform {

EPF_DEVICE inline uint32_t thread() {
#if defined(EPF_CUDA_CODE)
  return threadIdx.x;
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_workitem_id_x();
#else
  return 0;
#endif
}

EPF_DEVICE inline uint32_t threads() {
#if defined(EPF_CUDA_CODE)
  return blockDim.x;
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_workgroup_size_x();
#else
  return 1;
#endif
}

EPF_DEVICE inline uint32_t block() {
#if defined(EPF_CUDA_CODE)
  return blockIdx.x;
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_workgroup_id_x();
#else
  return 0;
#endif
}

EPF_DEVICE inline uint32_t blocks() {
#if defined(EPF_CUDA_CODE)
  return gridDim.x;
#elif defined(EPF_HIP_CODE)
  return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
#else
  return 1;
#endif
}

// What any thread of the block did before is seen by every thread after.
EPF_DEVICE inline void block_barrier() {
#if defined(EPF_CUDA_CODE)
  __syncthreads();
#elif defined(EPF_HIP_CODE)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "workgroup");
  __builtin_amdgcn_s_barrier();
#endif
}

// Adds to a word that the block shares.
EPF_DEVICE inline void add_block(uint32_t* word, uint32_t value) {
#if defined(EPF_CUDA_CODE)
  atomicAdd_block(word, value);
#elif defined(EPF_HIP_CODE)
  __hip_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#else
  *word += value;
#endif
}

// Adds to a word that threads of this GPU share.
EPF_DEVICE inline void add_device(uint32_t* word, uint32_t value) {
#if defined(EPF_CUDA_CODE)
  asm volatile("red.relaxed.gpu.add.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
#elif defined(EPF_HIP_CODE)
  __hip_atomic_fetch_add(word, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
#else
  *word += value;
#endif
}

// The largest value among the caller and its neighbours in an aligned group of 8 lanes; by a warp.
EPF_DEVICE inline float max_of_eight(float value) {
#if defined(EPF_CUDA_CODE)
  for (int step = 4; step > 0; step >>= 1) {
    const float other = __shfl_xor_sync(~0u, value, step);
    value = other > value ? other : value;
  }
#elif defined(EPF_HIP_CODE)
  for (uint32_t step = 4; step > 0; step >>= 1) {
    const int from = static_cast<int>((lane() ^ step) * 4);
    const float other = __builtin_bit_cast(
        float, __builtin_amdgcn_ds_bpermute(from, __builtin_bit_cast(int, value)));
    value = other > value ? other : value;
  }
#endif
  return value;
}

}  // namespace epfabric::platform

#endif  // EPF_HOST_PLATFORM
