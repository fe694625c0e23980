// Walks through a model's states, each step of which the real code does too, and the comparison of
// what both show. A Real has step(action), which says what is wrong or "", shown(), done(), and
// begin(), after which it is where it was at first. For the explorers' tests.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "explore.h"

namespace epfabric::test {

// Does a trace, as far as it can be done, then `round` again and again until all is done; what is
// wrong, or "".
template <class Real>
std::string replay(Real& real, const Trace& trace, const Trace& round) {
  for (const Action& action : trace) {
    if (const std::string fault = real.step(action); !fault.empty()) return fault;
  }
  for (int i = 0; i < 200; ++i) {
    for (const Action& action : round) {
      if (const std::string fault = real.step(action); !fault.empty()) return fault;
    }
  }
  return real.done() ? "" : "it does not come to an end";
}

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSlow = true;
#else
inline constexpr bool kSlow = false;
#endif
// Of one instance: enough for every step of a small one.
inline constexpr size_t kMostSteps = kSlow ? 2'000 : 400'000;
inline constexpr size_t kSomeSteps = kSlow ? 2'000 : 6'000;

struct Walked {
  std::string fault;  // where the two differ, or what the checker says
  Trace trace;
  size_t walks = 0, steps = 0, covered = 0;  // covered: different steps of the model
  double seconds = 0;
};

// Walks until `steps` were made or every step of the model was. Each walk looks for what no walk
// did before, and ends where all is done.
template <class Model, class Make>
class Walker {
 public:
  // `make` gives a unique_ptr to a Real.
  Walker(const Explorer<Model>& explored, uint64_t seed, Make make)
      : explored_(explored), random_(static_cast<uint32_t>(seed)), make_(std::move(make)) {
    walked_.resize(explored.edges());
  }

  Walked walk(size_t steps) {
    const double begin = now_seconds();
    while (out_.fault.empty() && out_.steps < steps && out_.covered < explored_.edges()) {
      if (out_.walks % kWalks == 0 || worn(*real_)) {
        real_.reset();
        real_ = make_();
      } else {
        real_->begin();
      }
      out_.walks += 1;
      walk_once();
    }
    out_.seconds = now_seconds() - begin;
    return out_;
  }

 private:
  // Whether it cannot come back to where it was at first.
  template <class Real>
  static bool worn(const Real& real) {
    if constexpr (requires { real.worn(); }) return real.worn();
    return false;
  }
  static constexpr size_t kDawdle = 100;
  static constexpr size_t kWalks = 32;  // by the same Real

  void walk_once() {
    if (out_.walks % (explored_.edges() / 50'000 + 1) == 0 || to_new_.empty()) look_for_new();
    out_.trace.clear();
    uint32_t at = 0;
    for (size_t i = 0; i <= kDawdle || !explored_.done(at); ++i) {
      const Edge* next = i <= kDawdle ? towards_new(at) : nullptr;
      if (next == nullptr && explored_.done(at)) return;
      const Edge& edge = next != nullptr ? *next : towards_done(at);
      out_.covered += walked_[explored_.index_of(edge)] ? 0 : 1;
      walked_[explored_.index_of(edge)] = true;
      out_.steps += 1;
      out_.trace.push_back(edge.action);
      at = edge.to;
      out_.fault = real_->step(edge.action);
      if (out_.fault.empty()) out_.fault = difference(explored_.state(at));
      if (!out_.fault.empty()) return;
    }
  }
  void look_for_new() {
    to_new_.resize(explored_.states());
    for (uint32_t at = 0; at < explored_.states(); ++at) {
      const auto [first, last] = explored_.edges_of(at);
      const bool walked = std::all_of(
          first, last, [this](const Edge& edge) { return walked_[explored_.index_of(edge)]; });
      to_new_[at] = walked ? Explorer<Model>::kNever : 0;
    }
    explored_.measure(to_new_, false);
  }
  // A new step, or one on the way to where the last look saw one; nullptr: there is none.
  const Edge* towards_new(uint32_t at) {
    const auto [first, last] = explored_.edges_of(at);
    const Edge* best = nullptr;
    for (size_t i = 0, count = static_cast<size_t>(last - first), from = random_(); i < count;
         ++i) {
      const Edge* edge = first + (from + i) % count;
      if (!walked_[explored_.index_of(*edge)]) return edge;
      const uint32_t distance = to_new_[edge->to];
      if (distance == Explorer<Model>::kNever) continue;
      if (best == nullptr || distance < to_new_[best->to]) best = edge;
    }
    return best;
  }
  const Edge& towards_done(uint32_t at) const {
    const auto [first, last] = explored_.edges_of(at);
    return *std::min_element(
        first, last, [&](const Edge& a, const Edge& b) { return distance(a) < distance(b); });
  }
  uint32_t distance(const Edge& edge) const {
    return Model::disturbs(edge.action) ? Explorer<Model>::kNever
                                        : explored_.steps_to_done(edge.to);
  }

  std::string difference(const typename Model::State& state) const {
    const std::string wanted = explored_.model().shown(state), real = real_->shown();
    return wanted == real ? "" : "the model has " + wanted + "the code has " + real;
  }

  const Explorer<Model>& explored_;
  std::minstd_rand random_;
  const Make make_;
  std::invoke_result_t<Make> real_;
  std::vector<bool> walked_;
  std::vector<uint32_t> to_new_;  // by state: steps to one from which a step is new
  Walked out_;
};

inline void print(const char* name, const Walked& walked, size_t edges) {
  std::printf(
      "explorer: %s: %zu walks of the real code, %zu steps, %zu of the model's %zu, %.2f s\n", name,
      walked.walks, walked.steps, walked.covered, edges, walked.seconds);
}

}  // namespace epfabric::test
