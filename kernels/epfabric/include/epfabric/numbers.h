// Numbers as tokens carry them: bfloat16, and 8-bit floats (e4m3, no infinities) with a scale for
// each 128 channels. For kernels; the CPU has the same functions so that tests can try all inputs.
#pragma once

#include "platform.h"

namespace epfabric {

inline constexpr uint32_t kScaleChannels = 128;
inline constexpr float kFp8Largest = 448.0f;
inline constexpr float kFp8LeastAmount = 1e-4f;  // of a group of zeros, so that its scale is finite

EPF_HOST_DEVICE inline float float_of_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

EPF_HOST_DEVICE inline uint32_t bits_of_float(float value) {
  return __builtin_bit_cast(uint32_t, value);
}

// Of a pair of bfloat16 in a 32-bit word: the lower, the upper.
EPF_HOST_DEVICE inline float lower_bf16(uint32_t pair) { return float_of_bits(pair << 16); }
EPF_HOST_DEVICE inline float upper_bf16(uint32_t pair) { return float_of_bits(pair & 0xffff0000u); }

// Rounds to nearest, ties to even; NaN stays NaN.
EPF_HOST_DEVICE inline uint32_t bf16_of(float value) {
  const uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}

// Rounds to nearest, ties to even; what is too large becomes the largest; NaN stays NaN.
EPF_HOST_DEVICE inline uint32_t fp8_of(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= bits_of_float(kFp8Largest)) return sign | 0x7eu;
  if (magnitude < bits_of_float(0.015625f)) {  // 2^-6: below it steps of 2^-9
    const float steps = float_of_bits(magnitude) * 512.0f + 8388608.0f;  // 2^23 rounds to a whole
    return sign | (bits_of_float(steps) - bits_of_float(8388608.0f));
  }
  const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1);
  return sign | (rounded - (120u << 23)) >> 20;
}

// The exponent e of the least power of two that is not below `value` (positive, normal).
EPF_HOST_DEVICE inline int exponent_above(float value) {
  const uint32_t bits = bits_of_float(value);
  return static_cast<int>(bits >> 23) - 127 + ((bits & 0x7fffffu) != 0 ? 1 : 0);
}

EPF_HOST_DEVICE inline float power_of_two(int exponent) {
  return float_of_bits(static_cast<uint32_t>(exponent + 127) << 23);
}

// What a group whose largest amount is `amount` is divided by.
EPF_HOST_DEVICE inline float fp8_scale(float amount, bool power) {
  const float least = amount > kFp8LeastAmount ? amount : kFp8LeastAmount;
  const float scale = least * (1.0f / kFp8Largest);
  return power ? power_of_two(exponent_above(scale)) : scale;
}

}  // namespace epfabric
