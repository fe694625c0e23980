// The recovery of a broken connection, as a model whose states are all visited, and the same steps
// done by the real proxies. docs/ordering.md says what is modelled.
#include <doctest/doctest.h>

#include "../seed.h"
#include "mend_model.h"
#include "mend_script.h"
#include "replay.h"
#include "walk.h"

using namespace epfabric::test;

namespace {

// Proxies of which this test leaves out what a flaw says.
class FlawedEnd : public MendEnd {
 public:
  using MendEnd::MendEnd;
};

}  // namespace

// As remote_mend.h has it, but for what the flaw leaves out.
namespace epfabric::agent {

template <>
void RemoteTransport<FlawedEnd>::collect(Link& link) {
  const MendFlaw flaw = endpoint_.flaw();
  link.journal.clear();
  link.replayed = 0;
  for (Operation& operation : operations_) {
    if (operation.link == &link && operation.lost) link.journal.push_back(&operation);
  }
  std::sort(link.journal.begin(), link.journal.end(),
            [](const Operation* a, const Operation* b) { return a->order < b->order; });
  bool taken = false;
  for (size_t i = link.journal.size(); i-- > 0;) {
    Operation* operation = link.journal[i];
    const bool record = operation->record != kNoRecord;
    taken = taken || (record && operation->record < link.outbox.acknowledged());
    bool known = taken && (record || operation->kind == Operation::Kind::kPart);
    if (flaw == MendFlaw::kNothingKnown || (flaw == MendFlaw::kWritesAgain && !record))
      known = false;
    if (flaw == MendFlaw::kNothingAgain) known = true;
    if (!known) continue;
    if (operation->ring != nullptr) operation->ring->part_done(operation->ticket);
    give_back(operation);
    link.journal[i] = nullptr;
  }
  std::erase(link.journal, nullptr);
}

}  // namespace epfabric::agent

namespace {

constexpr uint64_t kWrap = uint64_t{1} << 32;  // of 16 and 32 bits
constexpr size_t kMost = 1'000'000;

struct Instance {
  const char* name;
  MendModel model;
};

// Both ends do all that they may.
const Trace kRound = [] {
  Trace out;
  for (uint8_t e = 0; e < 2; ++e) {
    for (const Verb verb : {Verb::kPush, Verb::kGiveUp, Verb::kStore, Verb::kAnswer, Verb::kLate,
                            Verb::kGreet, Verb::kHear, Verb::kTurn})
      out.push_back({verb, e, 0});
  }
  return out;
}();

}  // namespace

TEST_CASE("a connection that breaks anywhere loses, repeats and delays nothing, in every order") {
  const Instance instances[] = {{"mending S, 1 break", {{"S", ""}, 1}},
                                {"mending WS, 1 break", {{"WS", ""}, 1}},
                                {"mending WS, 2 breaks", {{"WS", ""}, 2}},
                                {"mending WSD, 1 break", {{"WSD", ""}, 1}},
                                {"mending SS, 1 break", {{"SS", ""}, 1}},
                                {"mending WA, 1 break", {{"WA", ""}, 1}},
                                {"mending AS, 1 break", {{"AS", ""}, 1}},
                                {"mending S beside S, 1 break", {{"S", "S"}, 1}},
                                {"mending WS beside S, 1 break", {{"WS", "S"}, 1}}};
  for (const Instance& instance : instances) {
    const Explorer<MendModel> explored(instance.model, kMost);
    explored.print(instance.name);
    INFO(instance.name << ": " << text_of(explored.counterexample()));
    REQUIRE(explored.fault() == "");
    Walker walker(explored, seed(), [&] {
      return std::make_unique<Replay<MendScript, MendEnd>>(instance.model.courses, kWrap - 50);
    });
    const bool small = !kSlow && explored.edges() < 20'000;
    const Walked walked = walker.walk(small ? kMostSteps : kSomeSteps);
    print(instance.name, walked, explored.edges());
    INFO(instance.name << ": " << text_of(walked.trace));
    REQUIRE(walked.fault == "");
    CHECK((!small || walked.covered == explored.edges()));
  }
}

TEST_CASE("recovery in larger instances; by hand, takes a minute" * doctest::skip()) {
  const Instance instances[] = {{"mending WSWS, 2 breaks", {{"WSWS", ""}, 2}},
                                {"mending S, 3 breaks", {{"S", ""}, 3}},
                                {"mending WS beside S, 2 breaks", {{"WS", "S"}, 2}}};
  for (const Instance& instance : instances) {
    const Explorer<MendModel> explored(instance.model, 5 * kMost);
    explored.print(instance.name);
    CHECK(explored.fault() == "");
  }
}

TEST_CASE("what recovery rests on cannot be left out, and the real code has each of it") {
  struct Case {
    const char* name;
    MendFlaw flaw;
    Courses courses;
    uint8_t breaks;
  };
  const Case cases[] = {
      {"all is sent again", MendFlaw::kNothingKnown, {"WS", ""}, 1},
      {"writes are sent again", MendFlaw::kWritesAgain, {"WS", ""}, 1},
      {"nothing is sent again", MendFlaw::kNothingAgain, {"WS", ""}, 1},
      {"greetings of any generation count", MendFlaw::kAnyGeneration, {"S", ""}, 2},
      {"what came is not polled", MendFlaw::kUnpolled, {"SS", ""}, 1},
      {"the old connection's packets arrive", MendFlaw::kLateOnes, {"WS", ""}, 1},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Explorer<MendModel> explored({one.courses, one.breaks, one.flaw}, kMost);
    explored.print(one.name);
    const std::string text = text_of(explored.counterexample());
    std::printf("explorer: %s: %s\n", one.name, text.c_str());
    REQUIRE(explored.fault() != "");
    CAPTURE(text);
    const auto trace = trace_of(text);
    REQUIRE(trace);
    REQUIRE(*trace == explored.counterexample());
    for (const uint64_t first : {uint64_t{0}, kWrap - 2}) {  // one record settles the ends
      CAPTURE(first);
      Replay<MendScript, MendEnd> real(one.courses, first);
      CHECK(replay(real, *trace, kRound) == "");
      Replay<MendScript, FlawedEnd> flawed(one.courses, first);
      flawed.network.flaw = one.flaw;
      CHECK(replay(flawed, *trace, kRound) != "");
    }
  }
}
