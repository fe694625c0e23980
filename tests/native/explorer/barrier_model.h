// A model of the dissemination barrier (dissemination.h): nodes whose ranks enter and leave
// barriers, messages that keep their order from one node to another, and a node whose ranks are
// masked everywhere, of which each other node learns at a time of its own.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "action.h"

namespace epfabric::test {

// One thing that the barrier rests on, left out.
enum class BarrierFlaw : uint8_t {
  kNone,
  kAnyView,  // rounds of other views count
  kNotOver,  // nobody says that the barrier before is over
  kNoEarly,  // rounds of the next barrier are thrown away
};

struct BarrierModel {
  static constexpr uint8_t kMostNodes = 4, kMostEarly = 8, kMostUnderWay = 6;

  struct Message {
    uint8_t number = 0, round = 0, over = 0, view = 0;  // view: a bit for each lost node
    auto operator<=>(const Message&) const = default;
  };
  struct Early {
    uint8_t node = 0;
    Message message;
    auto operator<=>(const Early&) const = default;
  };
  struct Node {
    uint8_t number = 0;
    bool entered = false, over = false, changed = false;
    uint8_t received = 0, sent = 0, owed = 0;
    uint8_t gone = 0;
    uint8_t earlies = 0;
    std::array<Early, kMostEarly> early{};  // in order, since theirs means nothing
    // On their way to this node, by sender.
    std::array<uint8_t, kMostNodes> count{};
    std::array<std::array<Message, kMostUnderWay>, kMostNodes> mail{};
  };
  struct State {
    std::array<Node, kMostNodes> nodes;
    uint8_t masked = 0, masks = 0, fault = 0;
  };
  enum : uint8_t { kTooEarly = 1, kBadRound, kTooMany };
  static constexpr const char* kFaults[] = {nullptr, "a node left before all had entered",
                                            "a round came that cannot be",
                                            "more messages than the model has room for"};

  uint8_t nodes = 3, barriers = 1, masks = 1;
  BarrierFlaw flaw = BarrierFlaw::kNone;

  State initial() const {
    State out{};
    out.masks = masks;
    return out;
  }
  static const char* fault_of(const State& state) { return kFaults[state.fault]; }
  static bool disturbs(const Action& action) { return action.verb == Verb::kMask; }
  bool done(const State& state) const {
    for (uint8_t n = 0; n < nodes; ++n) {
      if (!has(state.masked, n) && state.nodes[n].number != barriers) return false;
    }
    return true;
  }

  void actions(const State& state, Trace& out) const {
    for (uint8_t n = 0; n < nodes; ++n) {
      const Node& node = state.nodes[n];
      const bool masked = has(state.masked, n);
      if (!masked && !node.entered && node.number < barriers) out.push_back({Verb::kEnter, n, 0});
      if (due(node).round != kNothing) out.push_back({Verb::kSend, n, 0});
      if (complete(node)) out.push_back({Verb::kLeave, n, 0});
      if (!masked && state.masks > 0) out.push_back({Verb::kMask, n, 0});
      for (uint8_t from = 0; from < nodes; ++from) {
        if (node.count[from] > 0) out.push_back({Verb::kTake, n, from});
        if (from != n && has(state.masked, from) && !has(node.gone, from))
          out.push_back({Verb::kLose, n, from});
      }
    }
  }

  State apply(const State& before, const Action& action) const {
    State state = before;
    const uint8_t n = action.end;
    Node& node = state.nodes[n];
    switch (action.verb) {
      case Verb::kEnter:
        node.entered = true;
        break;
      case Verb::kSend:
        send(state, n);
        break;
      case Verb::kTake: {
        std::array<Message, kMostUnderWay>& mail = node.mail[action.index];
        const Message first = mail[0];
        std::rotate(mail.begin(), mail.begin() + 1, mail.end());
        mail[--node.count[action.index]] = {};
        hear(state, n, action.index, first);
        break;
      }
      case Verb::kLeave:
        leave(state, n);
        break;
      case Verb::kMask:
        state.masks -= 1;
        state.masked |= bit(n);
        break;
      case Verb::kLose:
        node.gone |= bit(action.index);
        node.received = node.sent = 0;
        node.changed = true;
        node.owed = node.number > 0 ? all(node) : 0;
        adopt(state, n);
        break;
      default:
        break;
    }
    return state;
  }

  // What a node would send next, as the real one says it, and whether it may let its ranks go.
  std::string shown(const State& state) const {
    std::string out;
    for (uint8_t n = 0; n < nodes; ++n) {
      const Node& node = state.nodes[n];
      const Message next = due(node);
      if (next.round != kNothing)
        out += text_of(to(node, n, next.round), next.number, next.round, next.over != 0);
      out += complete(node) ? " complete; " : "; ";
    }
    return out;
  }
  static std::string text_of(uint32_t to, uint64_t number, uint32_t round, bool over) {
    return "to " + std::to_string(to) + " round " + std::to_string(round) + " of " +
           std::to_string(number) + (over ? " over" : "");
  }

 private:
  static constexpr uint8_t kNothing = 255;
  static constexpr uint8_t bit(uint8_t n) { return static_cast<uint8_t>(1u << n); }
  static constexpr bool has(uint8_t bits, uint8_t n) { return (bits >> n & 1) != 0; }

  uint8_t living(const Node& node) const {
    return static_cast<uint8_t>(nodes - std::popcount(node.gone));
  }
  uint8_t rounds(const Node& node) const {
    return static_cast<uint8_t>(std::bit_width(living(node) - 1u));
  }
  uint8_t all(const Node& node) const { return static_cast<uint8_t>((1u << rounds(node)) - 1); }
  // The node so many places further, of those that are not gone.
  uint8_t ahead(const Node& node, uint8_t n, uint32_t places) const {
    while (places > 0) {
      n = static_cast<uint8_t>((n + 1) % nodes);
      if (!has(node.gone, n)) --places;
    }
    return n;
  }
  uint8_t to(const Node& node, uint8_t n, uint8_t round) const {
    return ahead(node, n, (1u << round) % living(node));
  }
  bool complete(const Node& node) const {
    return node.entered && node.owed == 0 && node.sent == rounds(node) &&
           (node.over || node.received == all(node));
  }
  Message due(const Node& node) const {
    if (node.owed != 0) {
      const auto round = static_cast<uint8_t>(std::countr_zero(node.owed));
      return {static_cast<uint8_t>(node.number - 1), round, 1, node.gone};
    }
    const auto before = static_cast<uint8_t>((1u << node.sent) - 1);
    const bool heard = node.over || (node.received & before) == before;
    if (!node.entered || node.sent == rounds(node) || !heard) return {0, kNothing, 0, 0};
    return {node.number, node.sent, static_cast<uint8_t>(node.over), node.gone};
  }

  void send(State& state, uint8_t n) const {
    Node& node = state.nodes[n];
    const Message message = due(node);
    Node& other = state.nodes[to(node, n, message.round)];
    if (other.count[n] == kMostUnderWay) {
      state.fault = kTooMany;
      return;
    }
    const bool owed = node.owed != 0;
    if (!owed || flaw != BarrierFlaw::kNotOver) other.mail[n][other.count[n]++] = message;
    if (owed) {
      node.owed &= static_cast<uint8_t>(node.owed - 1);
    } else {
      node.sent += 1;
    }
  }

  void hear(State& state, uint8_t n, uint8_t from, const Message& message) const {
    Node& node = state.nodes[n];
    if (has(node.gone, from) || message.number < node.number || message.number > node.number + 1)
      return;
    if (message.over != 0) {
      node.over = node.over || (message.number == node.number && node.entered);
      return;
    }
    const bool same = message.view == node.gone || flaw == BarrierFlaw::kAnyView;
    if (message.number == node.number && same) {
      if (!count(node, n, from, message.round)) state.fault = kBadRound;
      return;
    }
    if (message.number == node.number + 1 && flaw == BarrierFlaw::kNoEarly) return;
    if (node.earlies == kMostEarly) {
      state.fault = kTooMany;
      return;
    }
    node.early[node.earlies++] = {from, message};
    std::sort(node.early.begin(), node.early.begin() + node.earlies);
  }
  bool count(Node& node, uint8_t n, uint8_t from, uint8_t round) const {
    if (round >= rounds(node) || to(node, from, round) != n) return false;
    if (has(node.received, round)) return false;
    node.received |= bit(round);
    return true;
  }
  void adopt(State& state, uint8_t n) const {
    Node& node = state.nodes[n];
    std::array<Early, kMostEarly> early{};
    std::swap(early, node.early);
    const uint8_t earlies = std::exchange(node.earlies, uint8_t{0});
    for (uint8_t i = 0; i < earlies; ++i) {
      const auto& [from, message] = early[i];
      if (message.number < node.number) continue;
      if (message.number == node.number && message.view == node.gone) {
        (void)count(node, n, from, message.round);
      } else {
        node.early[node.earlies++] = early[i];
      }
    }
  }

  void leave(State& state, uint8_t n) const {
    Node& node = state.nodes[n];
    for (uint8_t other = 0; other < nodes; ++other) {
      const Node& its = state.nodes[other];
      const bool came = its.number > node.number || (its.number == node.number && its.entered);
      if (!has(state.masked, other) && !came) state.fault = kTooEarly;
    }
    node.number += 1;
    node.owed = node.changed ? all(node) : 0;
    node.entered = node.over = node.changed = false;
    node.received = node.sent = 0;
    adopt(state, n);
  }
};

}  // namespace epfabric::test
