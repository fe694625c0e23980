// One seed for all that is random in this process, so that a failure can be had again:
// EPFABRIC_SEED, or a new one. For the C++ tests whose threads or providers draw; printed at once.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace epfabric::test {

inline uint64_t seed() {
  static const uint64_t made = [] {
    const char* given = std::getenv("EPFABRIC_SEED");
    const uint64_t value =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::fprintf(stderr, "EPFABRIC_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return made;
}

}  // namespace epfabric::test
