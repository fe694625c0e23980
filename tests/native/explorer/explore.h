// Visits every state that a model can reach, breadth first, so that a counterexample is a shortest
// one. A model has a State (bytes without gaps), initial(), actions(state, out), apply(state,
// action), which may set state.fault, disturbs(action), whether it is a misfortune, and
// done(state). Beside faults it finds states from which no way without further misfortune leads to
// a done one: there the protocol has come to a stand.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "action.h"

namespace epfabric::test {

struct Edge {
  Action action;
  uint32_t to;
};

template <class Model>
class Explorer {
 public:
  using State = typename Model::State;
  static_assert(std::has_unique_object_representations_v<State>);
  static constexpr uint32_t kNever = UINT32_MAX;

  Explorer(const Model& model, size_t most_states) : model_(model) {
    const auto begin = std::chrono::steady_clock::now();
    add(model.initial(), kNever, {});
    begins_.push_back(0);
    for (uint32_t at = 0; at < states_.size() && fault_.empty(); ++at) {
      if (states_.size() > most_states) {
        fault_ = "there are more states than it was to visit";
        break;
      }
      visit(at);
    }
    if (fault_.empty()) look_for_stands();
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Why the protocol is wrong, or "", and a shortest way there.
  const std::string& fault() const { return fault_; }
  const Trace& counterexample() const { return counterexample_; }

  size_t states() const { return states_.size(); }
  size_t edges() const { return edges_.size(); }
  uint32_t depth() const { return depth_; }
  const State& state(uint32_t at) const { return states_[at]; }
  std::pair<const Edge*, const Edge*> edges_of(uint32_t at) const {
    return {edges_.data() + begins_[at], edges_.data() + begins_[at + 1]};
  }
  size_t index_of(const Edge& edge) const { return static_cast<size_t>(&edge - edges_.data()); }
  // From each state so many steps to one of those that are 0 in `distances`; kNever: no way.
  void measure(std::vector<uint32_t>& distances, bool without_misfortune) const {
    std::vector<uint32_t> queue;
    for (uint32_t at = 0; at < states_.size(); ++at) {
      if (distances[at] == 0) queue.push_back(at);
    }
    for (size_t i = 0; i < queue.size(); ++i) {
      for (uint32_t j = starts_[queue[i]]; j < starts_[queue[i] + 1]; ++j) {
        const Edge& back = backs_[j];
        if (distances[back.to] != kNever || (without_misfortune && Model::disturbs(back.action)))
          continue;
        distances[back.to] = distances[queue[i]] + 1;
        queue.push_back(back.to);
      }
    }
  }
  bool done(uint32_t at) const { return model_.done(states_[at]); }
  // Steps without misfortune to a done state.
  uint32_t steps_to_done(uint32_t at) const { return to_done_[at]; }
  const Model& model() const { return model_; }

  void print(const char* name) const {
    std::printf("explorer: %s: %zu states, %zu steps, depth %u, %.2f s%s%s\n", name, states_.size(),
                edges_.size(), depth_, seconds_, fault_.empty() ? "" : ": ", fault_.c_str());
  }

 private:
  // States are bytes.
  static uint64_t hash_of(const State& state) {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&state), sizeof(State)});
  }
  static bool same(const State& a, const State& b) {
    return std::memcmp(&a, &b, sizeof(State)) == 0;
  }
  struct Origin {
    uint32_t from;
    Action action;
    uint32_t depth;
  };

  uint32_t add(const State& state, uint32_t from, const Action& action) {
    if (2 * states_.size() >= known_.size()) grow();
    const auto at = static_cast<uint32_t>(states_.size());
    uint32_t& slot = slot_of(state);
    if (slot != kNever) return slot;
    slot = at;
    states_.push_back(state);
    origins_.push_back({from, action, from == kNever ? 0 : origins_[from].depth + 1});
    depth_ = origins_.back().depth;
    if (const char* fault = Model::fault_of(state); fault != nullptr && fault_.empty()) {
      fault_ = fault;
      counterexample_ = way_to(at);
    }
    return at;
  }
  // Where its number stands, or would.
  uint32_t& slot_of(const State& state) {
    size_t i = hash_of(state) & (known_.size() - 1);
    while (known_[i] != kNever && !same(states_[known_[i]], state)) i = (i + 1) % known_.size();
    return known_[i];
  }
  void grow() {
    known_.assign(std::max<size_t>(4 * known_.size(), 1024), kNever);
    for (uint32_t at = 0; at < states_.size(); ++at) slot_of(states_[at]) = at;
  }

  void visit(uint32_t at) {
    actions_.clear();
    const State state = states_[at];
    model_.actions(state, actions_);
    for (const Action& action : actions_) {
      const State next = model_.apply(state, action);
      if (same(state, next)) continue;
      edges_.push_back({action, add(next, at, action)});
      if (!fault_.empty()) break;
    }
    begins_.push_back(edges_.size());
  }

  Trace way_to(uint32_t at) const {
    Trace out;
    for (; origins_[at].from != kNever; at = origins_[at].from) out.push_back(origins_[at].action);
    return {out.rbegin(), out.rend()};
  }

  // Every edge, by where it leads to.
  void turn_round() {
    starts_.assign(states_.size() + 1, 0);
    backs_.resize(edges_.size());
    for (const Edge& edge : edges_) starts_[edge.to + 1] += 1;
    for (size_t i = 0; i < states_.size(); ++i) starts_[i + 1] += starts_[i];
    std::vector<uint32_t> next(starts_.begin(), starts_.end() - 1);
    for (uint32_t at = 0; at < states_.size(); ++at) {
      for (size_t i = begins_[at]; i < begins_[at + 1]; ++i)
        backs_[next[edges_[i].to]++] = {edges_[i].action, at};
    }
  }

  void look_for_stands() {
    turn_round();
    to_done_.resize(states_.size());
    for (uint32_t at = 0; at < states_.size(); ++at) to_done_[at] = done(at) ? 0 : kNever;
    measure(to_done_, true);
    // The first from which nothing helps any more; if that is the initial one, one without a step.
    uint32_t stand = 0;
    while (stand < states_.size() && to_done_[stand] != kNever) ++stand;
    if (stand == states_.size()) return;
    for (uint32_t at = 1; stand == 0 && at < states_.size(); ++at) {
      if (begins_[at] == begins_[at + 1]) stand = at;
    }
    fault_ = "it does not come to an end";
    counterexample_ = way_to(stand);
  }

  const Model model_;
  std::vector<uint32_t> known_;  // numbers of states, by their hash; a power of two
  std::vector<State> states_;
  std::vector<Origin> origins_;
  std::vector<size_t> begins_;
  std::vector<Edge> edges_;
  std::vector<uint32_t> starts_;
  std::vector<Edge> backs_;
  std::vector<uint32_t> to_done_;
  Trace actions_;
  uint32_t depth_ = 0;
  double seconds_ = 0;
  std::string fault_;
  Trace counterexample_;
};

}  // namespace epfabric::test
