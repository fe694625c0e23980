// Every conversion of numbers.h that a file of floats asks for: bfloat16, e4m3, exponents; for
// test_numbers.py. Reads floats from standard input, writes three 32-bit words for each.
#include "epfabric/numbers.h"

#include <cstdio>

int main() {
  float value;
  while (std::fread(&value, sizeof value, 1, stdin) == 1) {
    const bool whole = value >= 1e-37f && value <= 1e37f;
    const epfabric::uint32_t out[3] = {
        epfabric::bf16_of(value), epfabric::fp8_of(value),
        whole ? epfabric::bits_of_float(epfabric::power_of_two(epfabric::exponent_above(value)))
              : 0};
    if (std::fwrite(out, sizeof out, 1, stdout) != 1) return 1;
  }
  return 0;
}
