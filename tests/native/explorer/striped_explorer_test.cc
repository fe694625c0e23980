// A link over two lines that break or go for good, as a model whose states are all visited, and the
// same steps done by the real striped endpoint. docs/ordering.md says what is modelled.
#include <doctest/doctest.h>

#include "../seed.h"
#include "replay.h"
#include "striped_model.h"
#include "striped_script.h"
#include "walk.h"

using namespace epfabric::test;

namespace {

// An endpoint of which this test leaves out what a flaw says; of the others the script does.
class FlawedEnd : public StripedEnd {
 public:
  using StripedEnd::StripedEnd;
  bool arrived(PeerIndex peer, void* context) {
    const bool out = StripedEnd::arrived(peer, context);
    if (script().flaw == StripedFlaw::kNothingThere) return false;
    return out || script().flaw == StripedFlaw::kAllThere;
  }
};

constexpr uint64_t kWrap = uint64_t{1} << 32;  // of 16 and 32 bits
constexpr size_t kMost = 1'000'000;
constexpr size_t kFewSteps = 1'000;  // each walk needs proxies of its own, once a line is gone

struct Instance {
  const char* name;
  StripedModel model;
};

uint8_t last_generation(const Explorer<StripedModel>& explored) {
  uint8_t out = 0;
  for (uint32_t at = 0; at < explored.states(); ++at) {
    for (const auto& end : explored.state(at).ends) {
      for (const auto& line : end.lines) out = std::max(out, line.generation);
    }
  }
  return out;
}

// Both ends do all that they may.
const Trace kRound = [] {
  Trace out;
  for (uint8_t e = 0; e < 2; ++e) {
    out.push_back({Verb::kPush, e, 0});
    for (uint8_t l = 0; l < StripedModel::kLines; ++l) {
      for (const Verb verb :
           {Verb::kGiveUp, Verb::kStore, Verb::kComplete, Verb::kLate, Verb::kGreet})
        out.push_back({verb, e, 0, l});
      out.push_back({Verb::kHear, static_cast<uint8_t>(1 - e), 0});
    }
    out.push_back({Verb::kTurn, e, 0});
  }
  return out;
}();

}  // namespace

TEST_CASE("lines that break or go anywhere lose, repeat and delay nothing, in every order") {
  const Instance instances[] = {{"striped S, 1 break", {{"S", ""}, 1}},
                                {"striped S, 2 breaks", {{"S", ""}, 2}},
                                {"striped WS, 1 break", {{"WS", ""}, 1}},
                                {"striped WD, 1 break", {{"WD", ""}, 1}},
                                {"striped S beside S, 1 break", {{"S", "S"}, 1}},
                                {"striped S, 1 line gone", {{"S", ""}, 0, 1}},
                                {"striped WS, 1 line gone", {{"WS", ""}, 0, 1}},
                                {"striped S, 1 break, 1 line gone", {{"S", ""}, 1, 1}}};
  for (const Instance& instance : instances) {
    const Explorer<StripedModel> explored(instance.model, kMost);
    explored.print(instance.name);
    INFO(instance.name << ": " << text_of(explored.counterexample()));
    REQUIRE(explored.fault() == "");
    CHECK(last_generation(explored) < StripedModel::State::kEndless);
    Walker walker(explored, seed(), [&] {
      return std::make_unique<Replay<StripedScript, StripedEnd>>(instance.model.courses,
                                                                 kWrap - 50);
    });
    const bool once = instance.model.kills > 0;
    const bool small = !kSlow && !once && explored.edges() < 20'000;
    const Walked walked = walker.walk(once ? kFewSteps : small ? kMostSteps : kSomeSteps);
    print(instance.name, walked, explored.edges());
    INFO(instance.name << ": " << text_of(walked.trace));
    REQUIRE(walked.fault == "");
    CHECK((!small || walked.covered == explored.edges()));
  }
}

TEST_CASE("striped recovery in larger instances; by hand" * doctest::skip()) {
  const Instance instances[] = {{"striped WSD, 1 break", {{"WSD", ""}, 1}},
                                {"striped WS, 2 breaks", {{"WS", ""}, 2}},
                                {"striped WS beside S, 1 break", {{"WS", "S"}, 1}}};
  for (const Instance& instance : instances) {
    const Explorer<StripedModel> explored(instance.model, 5 * kMost);
    explored.print(instance.name);
    CHECK(explored.fault() == "");
  }
}

TEST_CASE("what striped recovery rests on cannot be left out, and the real code has each of it") {
  struct Case {
    const char* name;
    StripedFlaw flaw;
    Courses courses;
    uint8_t breaks, kills = 0;
  };
  const Case cases[] = {
      {"all is sent again", StripedFlaw::kNothingThere, {"WS", ""}, 1},
      {"nothing is sent again", StripedFlaw::kAllThere, {"S", ""}, 1},
      {"greetings tell of their own line", StripedFlaw::kOwnLine, {"S", ""}, 1},
      {"a line goes on to another era by itself", StripedFlaw::kAcross, {"S", ""}, 2},
      {"counts are told too early", StripedFlaw::kEarly, {"S", ""}, 1},
      {"a line that is out follows nobody", StripedFlaw::kUnfollowed, {"", ""}, 1, 1},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Explorer<StripedModel> explored({one.courses, one.breaks, one.kills, one.flaw}, kMost);
    explored.print(one.name);
    const std::string text = text_of(explored.counterexample());
    std::printf("explorer: %s: %s\n", one.name, text.c_str());
    REQUIRE(explored.fault() != "");
    CAPTURE(text);
    const auto trace = trace_of(text);
    REQUIRE(trace);
    REQUIRE(*trace == explored.counterexample());
    for (const uint64_t first : {uint64_t{0}, kWrap - 2}) {
      CAPTURE(first);
      Replay<StripedScript, StripedEnd> real(one.courses, first);
      CHECK(replay(real, *trace, kRound) == "");
      Replay<StripedScript, FlawedEnd> flawed(one.courses, first);
      flawed.network.flaw = one.flaw;
      CHECK(replay(flawed, *trace, kRound) != "");
    }
  }
}
