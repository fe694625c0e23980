// The conversions of numbers.h as the GPU has them, where it has them; for kernels.
#pragma once

#include "numbers.h"

namespace epfabric::platform {

// Two bfloat16 in a word, rounded to nearest.
EPF_DEVICE inline uint32_t bf16_pair(float lower, float upper) {
#if defined(EPF_CUDA_CODE)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(upper), "f"(lower));
  return pair;
#else
  return bf16_of(lower) | bf16_of(upper) << 16;
#endif
}

// The sums of two pairs of bfloat16, rounded to nearest: as float has them, which is wide enough.
EPF_DEVICE inline uint32_t add_bf16_pairs(uint32_t one, uint32_t other) {
#if defined(EPF_CUDA_CODE)
  uint32_t sums;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sums) : "r"(one), "r"(0x3f803f80u), "r"(other));
  return sums;
#else
  return bf16_pair(lower_bf16(one) + lower_bf16(other), upper_bf16(one) + upper_bf16(other));
#endif
}

// Two 8-bit floats in the lower half of a word, rounded to nearest, at most the largest.
EPF_DEVICE inline uint32_t fp8_pair(float lower, float upper) {
#if defined(EPF_CUDA_CODE) && __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(upper), "f"(lower));
  return pair;
#else
  return fp8_of(lower) | fp8_of(upper) << 8;
#endif
}

}  // namespace epfabric::platform
