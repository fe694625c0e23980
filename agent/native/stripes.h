// Which of the lines to a peer takes the next write. Lines differ in speed, and nobody says by how
// much: that shows in what they carry while all of them are busy. Pure; used by striped_endpoint.h.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <vector>

namespace epfabric::agent {

inline constexpr uint32_t kMaxLines = 8;
inline constexpr uint64_t kStripeBytes = 64 << 10;  // a longer WRITE is divided

enum class Selection : uint8_t {
  kLeastInflight,  // the one that will be through with it first
  kRoundRobin,
};

// The ports, of `ports`, over which proxy `proxy` stripes its links, in their order: at most
// `wanted`. The same at both ends, where proxies of one number have their links.
inline std::vector<uint32_t> lines_of(uint32_t proxy, uint32_t wanted, uint32_t ports) {
  std::vector<uint32_t> out(std::min({wanted, ports, kMaxLines}));
  for (uint32_t i = 0; i < out.size(); ++i)
    out[i] = (proxy * static_cast<uint32_t>(out.size()) + i) % ports;
  std::sort(out.begin(), out.end());
  return out;
}

// Of one peer.
class Stripes {
 public:
  using Bytes = std::array<uint64_t, kMaxLines>;  // by line

  // `up`, as bits: those that there are now.
  explicit Stripes(uint32_t lines, Selection selection = Selection::kLeastInflight,
                   uint32_t up = (1u << kMaxLines) - 1)
      : count_(lines), selection_(selection), up_(up & ((1u << lines) - 1)) {
    for (uint32_t line = 0; line < lines; ++line) carried(line, kFirst);
  }

  uint32_t up() const { return up_; }
  // What the others carried while it was out compares nothing with it: all are alike again.
  void add(uint32_t line) {
    up_ |= 1u << line;
    carried_ = {};
    total_ = 0;
    for (uint32_t each = 0; each < count_; ++each) carried(each, kFirst);
  }
  // The line of `among` (bits, not none) for so many bytes. Of two that are alike the one with less
  // in `others`, what is under way on each to all peers.
  uint32_t choose(uint64_t bytes, uint32_t among, const Bytes& others) const {
    if (selection_ == Selection::kRoundRobin) {
      uint32_t line = next_;
      while ((among >> line & 1) == 0) line = line + 1 < count_ ? line + 1 : 0;
      return line;
    }
    uint32_t best = kMaxLines;
    for (uint32_t line = 0; line < count_; ++line) {
      if ((among >> line & 1) == 0) continue;
      if (best == kMaxLines || before(line, best, bytes, others)) best = line;
    }
    return best;
  }

  void posted(uint32_t line, uint64_t bytes) {
    next_ = line + 1 < count_ ? line + 1 : 0;
    busy_ += inflight_[line] == 0 ? 1 : 0;
    inflight_[line] += bytes;
  }
  void completed(uint32_t line, uint64_t bytes) {
    const bool compared = busy_ == static_cast<uint32_t>(std::popcount(up_));
    inflight_[line] -= bytes;
    const bool idle = inflight_[line] == 0;
    busy_ -= idle ? 1 : 0;
    if (!compared) return;
    carried(line, bytes);
    // The comparison ends here. What the others are at is half through, as far as anyone knows.
    for (uint32_t other = 0; idle && other < count_; ++other) {
      if (other != line && (up_ >> other & 1) != 0) carried(other, bytes / 2);
    }
  }

  uint64_t inflight(uint32_t line) const { return inflight_[line]; }
  // Of the speed of all; a line keeps a little, so that it may recover.
  uint64_t share(uint32_t line) const { return std::max(carried_[line], total_ / 64); }
  uint64_t shares() const { return total_; }

 private:
  static constexpr uint64_t kFirst = 2 * kStripeBytes;    // as if each had carried this
  static constexpr uint64_t kMemory = 32 * kStripeBytes;  // of all, then older ones count half

  // Whether `line` would be through with the bytes earlier.
  bool before(uint32_t line, uint32_t than, uint64_t bytes, const Bytes& others) const {
    const uint64_t ours = (inflight_[line] + bytes) * share(than);
    const uint64_t theirs = (inflight_[than] + bytes) * share(line);
    return ours < theirs || (ours == theirs && others[line] < others[than]);
  }
  void carried(uint32_t line, uint64_t bytes) {
    carried_[line] += bytes;
    total_ += bytes;
    if (total_ < kMemory) return;
    total_ = 0;
    for (uint64_t& one : carried_) total_ += one /= 2;
  }

  uint32_t count_;
  Selection selection_;
  uint32_t up_;
  uint32_t next_ = 0;
  uint32_t busy_ = 0;  // lines with something under way
  Bytes inflight_{};
  Bytes carried_{};  // while all were busy
  uint64_t total_ = 0;
};

}  // namespace epfabric::agent
