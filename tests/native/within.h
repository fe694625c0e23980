// Waits with a bound for what another thread brings about; for tests with threads.
#pragma once

#include <epfabric/platform.h>

#include <thread>

namespace epfabric::test {

inline constexpr uint64_t kSeenNs = 20'000'000'000;

// Whether it came to be so within the bound.
template <class Seen>
bool within(Seen seen) {
  const uint64_t end = platform::clock_ns() + kSeenNs;
  while (!seen()) {
    if (platform::clock_ns() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace epfabric::test
