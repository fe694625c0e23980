// What the fuzz targets share: reading an input, writing seeds, failing. Used by each target here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace epfabric::agent {

// Bytes in order; zeros when there are no more.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    T out{};
    const auto some = take(sizeof(T));
    if (!some.empty()) std::memcpy(&out, some.data(), some.size());
    return out;
  }
  std::span<const std::byte> take(size_t most) {
    const auto out = bytes_.first(std::min(most, bytes_.size()));
    bytes_ = bytes_.subspan(out.size());
    return out;
  }
  size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

struct Output {
  template <class T>
  void put(const T& value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), raw, raw + sizeof(T));
  }
  std::vector<std::byte> bytes;
};

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "this does not hold: %s\n", what);
  std::abort();
}

// What a target is: one execution, which aborts where a property is broken, and valid inputs to
// begin from.
void fuzz(Input& input);
std::vector<std::vector<std::byte>> seeds();

}  // namespace epfabric::agent
