// What the network of rc_network.h does, by one seed, and what it counts; its ends are those of
// rc_endpoint.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace epfabric::test {

class RcEndpoint;

struct RcRules {
  uint32_t break_one_in = 0;      // steps; 0 = never, as below
  uint32_t refuse_one_in = 8;     // posts
  uint32_t miss_one_in = 4;       // greetings
  uint32_t give_up_one_in = 200;  // steps until an end sees that its peer does not answer
  size_t queue = 64;              // writes of one connection under way
  size_t polled = 64;             // completions of one poll
  uint64_t max_bytes = 512;
  uint32_t first_taken = 0;  // what an end tells that never was connected: Limits::first_sequence
  uint64_t longest = UINT64_MAX;  // bytes of a write that gets through
  bool still = false;             // nothing moves, and nobody meets
  bool dead = false;              // nothing gets through any more
  bool unanswered = false;        // what is done completes only by a break
  bool busy = false;              // each poll finds something, of others
};

// How a NIC fails as a device: it says so, its completion queue cannot be polled, or nothing comes
// of it.
enum class Failing : uint8_t { kTold, kUnreadable, kSilent };

class RcNetwork {
 public:
  RcNetwork(uint64_t seed, const RcRules& rules) : rules(rules), random_(seed) {}

  RcRules rules;
  void at(uint64_t) {}              // it counts steps instead
  void stop() { stopped_ = true; }  // nothing moves any more: memory goes
  uint64_t posted() const { return posted_; }
  uint64_t breaks() const { return breaks_; }
  uint64_t done_unanswered() const { return done_unanswered_; }  // writes whose answer was lost
  static constexpr size_t kEach = ~size_t{0};
  inline void break_all(size_t of = kEach);  // every connection, of this endpoint, at both ends
  inline bool all_met() const;
  inline uint64_t under_way() const;
  inline uint64_t done() const;  // of these, at the peer
  inline void kill(size_t from, size_t to);
  inline void fail_device(size_t of, Failing how);  // of this endpoint
  // Queue pairs that one endpoint began to end or made, at most, from one poll to the next.
  uint64_t most_work() const { return most_work_; }
  uint64_t late() const { return late_; }  // writes that arrived after their connection had broken

 private:
  friend class RcEndpoint;
  bool one_in(uint32_t n) { return n != 0 && random_() % n == 0; }
  bool misses() { return rules.dead || one_in(rules.miss_one_in); }  // a greeting
  inline void step();

  std::minstd_rand random_;
  bool stopped_ = false;
  std::vector<RcEndpoint*> endpoints_;
  uint64_t posted_ = 0, breaks_ = 0, done_unanswered_ = 0, late_ = 0, most_work_ = 0;
  const void* changing_ = nullptr;  // the atomic that a NIC has begun, and what it read
  uint64_t old_ = 0;
};

}  // namespace epfabric::test
