// How often a line broke while it carried. One over which short writes pass and long ones do not
// never carries what broke it: it is given up some time, like one that breaks again and again.
// Pure; used by striped_endpoint.h.
#pragma once

#include <algorithm>
#include <cstdint>

namespace epfabric::agent {

class Breaks {
 public:
  static constexpr uint32_t kForgiven = 1024;  // writes

  // In a row: it did not carry kForgiven writes in between that were as long as the longest of
  // those that broke it.
  uint32_t count() const { return count_; }
  // A write of so many bytes was the first to fail; 0: not known.
  void broke(uint64_t bytes) {
    count_ += 1;
    carried_ = 0;
    longest_ = std::max(longest_, bytes);
  }
  void carried(uint64_t bytes) {
    if (count_ == 0 || bytes < longest_) return;
    carried_ += 1;
    if (carried_ == kForgiven) *this = {};
  }

 private:
  uint32_t count_ = 0;
  uint32_t carried_ = 0;
  uint64_t longest_ = 0;
};

}  // namespace epfabric::agent
