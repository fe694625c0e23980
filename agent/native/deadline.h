// One bound for several waits in a row; used by Session and Core.
#pragma once

#include <epfabric/platform.h>

namespace epfabric::agent {

class Deadline {
 public:
  explicit Deadline(uint64_t timeout_ns)
      : begin_ns_(platform::clock_ns()), timeout_ns_(timeout_ns) {}

  uint64_t left_ns() const {
    const uint64_t passed = platform::clock_ns() - begin_ns_;
    return passed < timeout_ns_ ? timeout_ns_ - passed : 0;
  }

 private:
  uint64_t begin_ns_;
  uint64_t timeout_ns_;
};

}  // namespace epfabric::agent
