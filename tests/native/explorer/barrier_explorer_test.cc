// The dissemination barrier, as a model whose states are all visited, and the same steps done by
// the real state machine. docs/ordering.md says what is modelled.
#include <doctest/doctest.h>

#include <deque>
#include <vector>

#include "../seed.h"
#include "barrier_model.h"
#include "dissemination.h"
#include "trace.h"
#include "walk.h"

using namespace epfabric::test;
using epfabric::agent::Dissemination;

namespace {

class Nodes {
 public:
  Nodes(const BarrierModel& shape, BarrierFlaw flaw) : shape_(shape), flaw_(flaw) { begin(); }
  void begin() {
    nodes_.clear();
    for (uint8_t n = 0; n < shape_.nodes; ++n) nodes_.emplace_back(n, shape_.nodes);
  }

  std::string step(const Action& action) {
    Node& node = nodes_[action.end];
    switch (action.verb) {
      case Verb::kEnter:
        if (node.masked || node.entered > node.left || node.left == shape_.barriers) break;
        node.entered += 1;
        node.real.enter();
        break;
      case Verb::kSend:
        send(action.end);
        break;
      case Verb::kTake:
        return take(action.end, action.index);
      case Verb::kLeave:
        return leave(node);
      case Verb::kMask:
        node.masked = true;
        break;
      case Verb::kLose:
        if (!nodes_[action.index].masked || action.index == action.end) break;
        node.lost |= 1u << action.index;
        node.real.lose(action.index);
        break;
      default:
        break;
    }
    return "";
  }

  std::string shown() {
    std::string out;
    for (Node& node : nodes_) {
      if (const Dissemination::Message* due = node.real.due(); due != nullptr)
        out += BarrierModel::text_of(due->node, due->number, due->round.round, due->round.over);
      out += node.real.complete() ? " complete; " : "; ";
    }
    return out;
  }
  bool done() const {
    return std::all_of(nodes_.begin(), nodes_.end(), [this](const Node& node) {
      return node.masked || node.left == shape_.barriers;
    });
  }

 private:
  struct Node {
    Node(uint32_t name, uint32_t nodes) : real(name, nodes), mail(nodes) {}
    Dissemination real;
    uint64_t entered = 0, left = 0;
    uint32_t lost = 0;
    bool masked = false;
    std::vector<std::deque<Dissemination::Message>> mail;  // on its way to it, by sender
  };

  void send(uint8_t n) {
    const Dissemination::Message* due = nodes_[n].real.due();
    if (due == nullptr) return;
    // Of the barrier before: what a change of the view asks for.
    const bool again = due->number < nodes_[n].left;
    if (!again || flaw_ != BarrierFlaw::kNotOver) nodes_[due->node].mail[n].push_back(*due);
    nodes_[n].real.sent();
  }
  std::string take(uint8_t n, uint8_t from) {
    Node& node = nodes_[n];
    if (node.mail[from].empty()) return "";
    Dissemination::Message message = node.mail[from].front();
    node.mail[from].pop_front();
    if (flaw_ == BarrierFlaw::kNoEarly && message.number > node.left) return "";
    if (flaw_ == BarrierFlaw::kAnyView) message.round.view = view_of(node);
    const char* fault = node.real.on_round(from, message.number, message.round);
    return fault != nullptr ? fault : "";
  }
  uint64_t view_of(const Node& node) const {
    uint64_t out = 0;
    for (uint32_t n = 0; n < nodes_.size(); ++n) {
      if ((node.lost >> n & 1) != 0) out ^= epfabric::agent::detail::scatter(n + 1);
    }
    return out & epfabric::agent::kViewBits;
  }
  std::string leave(Node& node) {
    if (!node.real.complete()) return "";
    node.left += 1;
    node.real.next(false);
    for (const Node& other : nodes_) {
      if (!other.masked && other.entered < node.left) return "a node left before all had entered";
    }
    return "";
  }

  const BarrierModel shape_;
  const BarrierFlaw flaw_;
  std::deque<Node> nodes_;
};

Trace round_of(uint8_t nodes) {
  Trace out;
  for (uint8_t n = 0; n < nodes; ++n) {
    for (const Verb verb : {Verb::kEnter, Verb::kSend, Verb::kLeave}) out.push_back({verb, n, 0});
    for (uint8_t from = 0; from < nodes; ++from) {
      for (const Verb verb : {Verb::kTake, Verb::kLose}) out.push_back({verb, n, from});
    }
  }
  return out;
}

constexpr size_t kMost = 1'000'000;

}  // namespace

TEST_CASE(
    "no node leaves a barrier before all that live have entered, whoever learns of a loss when") {
  struct Instance {
    const char* name;
    BarrierModel model;
  };
  const Instance instances[] = {{"barriers of 2, 1 masked", {2, 2, 1}},
                                {"barriers of 3, 1 masked", {3, 2, 1}},
                                {"barriers of 4, none masked", {4, 2, 0}}};
  for (const Instance& instance : instances) {
    const Explorer<BarrierModel> explored(instance.model, kMost);
    explored.print(instance.name);
    INFO(instance.name << ": " << text_of(explored.counterexample()));
    REQUIRE(explored.fault() == "");
    Walker walker(explored, seed(),
                  [&] { return std::make_unique<Nodes>(instance.model, BarrierFlaw::kNone); });
    const bool small = !kSlow && explored.edges() < 20'000;
    const Walked walked = walker.walk(small ? kMostSteps : kSomeSteps);
    print(instance.name, walked, explored.edges());
    INFO(instance.name << ": " << text_of(walked.trace));
    REQUIRE(walked.fault == "");
    CHECK((!small || walked.covered == explored.edges()));
  }
}

TEST_CASE("what the barrier rests on cannot be left out, and the real one has each of it") {
  struct Case {
    const char* name;
    BarrierFlaw flaw;
  };
  const Case cases[] = {{"rounds of any view count", BarrierFlaw::kAnyView},
                        {"nobody says that it is over", BarrierFlaw::kNotOver},
                        {"early rounds are thrown away", BarrierFlaw::kNoEarly}};
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const BarrierModel model{3, 2, 1, one.flaw};
    const Explorer<BarrierModel> explored(model, kMost);
    explored.print(one.name);
    const std::string text = text_of(explored.counterexample());
    std::printf("explorer: %s: %s\n", one.name, text.c_str());
    REQUIRE(explored.fault() != "");
    CAPTURE(text);
    const auto trace = trace_of(text);
    REQUIRE(trace);
    REQUIRE(*trace == explored.counterexample());
    Nodes real(model, BarrierFlaw::kNone);
    CHECK(replay(real, *trace, round_of(model.nodes)) == "");
    Nodes flawed(model, one.flaw);
    CHECK(replay(flawed, *trace, round_of(model.nodes)) != "");
  }
}
