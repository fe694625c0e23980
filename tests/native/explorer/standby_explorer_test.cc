// A link that goes over to another line, as a model whose states are all visited, and the same
// steps done by the real standby endpoint. docs/ordering.md says what is modelled.
#include <doctest/doctest.h>

#include "../seed.h"
#include "mend_model.h"
#include "replay.h"
#include "standby_script.h"
#include "walk.h"

using namespace epfabric::test;

namespace {

using RealEnd = StandbyEnd<MendEnd>;

// The ends of lines over which next_era() below goes.
class FlawedLine : public MendEnd {
 public:
  using MendEnd::MendEnd;
};

}  // namespace

// As standby_lines.h has it, but that nothing is known of a later one.
namespace epfabric::agent {

template <>
uint32_t StandbyEndpoint<FlawedLine>::next_era(const Peer& peer) const {
  const auto count = static_cast<uint32_t>(peer.lines.size());
  uint32_t heard = 0;
  for (const Line& line : peer.lines) heard = std::max(heard, own_[line.own].heard(line.at));
  const bool own = own_[0].flaw() == MendFlaw::kOwnNumber;
  uint32_t out = heard > peer.era && !own ? heard : peer.era + (peer.leaving ? 1 : count);
  if (faulty(peer, out % count)) out += 1;
  return out;
}

}  // namespace epfabric::agent

namespace {

// An endpoint of which this test leaves out what a flaw says; of some the script does.
class FlawedEnd : public StandbyEnd<FlawedLine> {
 public:
  using StandbyEnd::StandbyEnd;
  void remake(PeerIndex index, const epfabric::agent::Told& told) {
    before_ = StandbyEnd::told(index);
    StandbyEnd::remake(index, told);
  }
  const epfabric::agent::Told& told(PeerIndex index) const {
    return script().flaw == MendFlaw::kBelated ? before_ : StandbyEnd::told(index);
  }

 private:
  epfabric::agent::Told before_{};
};

constexpr uint64_t kWrap = uint64_t{1} << 32;
constexpr size_t kMost = 1'000'000;
constexpr size_t kFewSteps = 1'000;  // each walk needs proxies of its own, once a line is gone

MendModel model(const Courses& courses, uint8_t breaks, uint8_t kills, uint8_t hurries,
                MendFlaw flaw = MendFlaw::kNone) {
  return {courses, breaks, flaw, 2, kills, hurries};
}

struct Instance {
  const char* name;
  MendModel model;
};

uint8_t last_number(const Explorer<MendModel>& explored) {
  uint8_t out = 0;
  for (uint32_t at = 0; at < explored.states(); ++at) {
    for (const auto& end : explored.state(at).ends)
      out = std::max({out, end.era, end.generation, end.rested});
  }
  return out;
}

// Both ends do all that they may.
const Trace kRound = [] {
  Trace out;
  for (uint8_t e = 0; e < 2; ++e) {
    for (const Verb verb : {Verb::kPush, Verb::kGiveUp, Verb::kStore, Verb::kAnswer, Verb::kLate})
      out.push_back({verb, e, 0});
    out.push_back({Verb::kGreet, e, 0});
    out.push_back({Verb::kHear, static_cast<uint8_t>(1 - e), 0});
    out.push_back({Verb::kTurn, e, 0});
  }
  return out;
}();

}  // namespace

TEST_CASE(
    "a link that goes over to another NIC loses, repeats and delays nothing, in every order") {
  const Instance instances[] = {{"standby S, 1 break, left once", model({"S", ""}, 1, 0, 1)},
                                {"standby S beside S, 1 NIC gone", model({"S", "S"}, 0, 1, 0)},
                                {"standby WA, 1 NIC gone", model({"WA", ""}, 0, 1, 0)},
                                {"standby WS, 1 break, 1 NIC gone", model({"WS", ""}, 1, 1, 0)},
                                {"standby S, 2 NICs gone, left once", model({"S", ""}, 0, 2, 1)}};
  for (const Instance& instance : instances) {
    const Explorer<MendModel> explored(instance.model, kMost);
    explored.print(instance.name);
    INFO(instance.name << ": " << text_of(explored.counterexample()));
    REQUIRE(explored.fault() == "");
    CHECK(last_number(explored) + 1 < MendModel::State::kEndless);
    Walker walker(explored, seed(), [&] {
      return std::make_unique<Replay<MendScript, RealEnd>>(instance.model.courses, kWrap - 50);
    });
    const Walked walked = walker.walk(instance.model.kills > 0 ? kFewSteps : kSomeSteps);
    print(instance.name, walked, explored.edges());
    INFO(instance.name << ": " << text_of(walked.trace));
    REQUIRE(walked.fault == "");
  }
}

TEST_CASE("links that go over in larger instances; by hand" * doctest::skip()) {
  const Instance instances[] = {
      {"standby WS, 1 break, 1 NIC gone, left once", model({"WS", ""}, 1, 1, 1)},
      {"standby S, 2 breaks, 1 NIC gone, left once", model({"S", ""}, 2, 1, 1)},
      {"standby S beside S, 1 break, 1 NIC gone", model({"S", "S"}, 1, 1, 0)}};
  for (const Instance& instance : instances) {
    const Explorer<MendModel> explored(instance.model, 5 * kMost);
    explored.print(instance.name);
    CHECK(explored.fault() == "");
  }
}

TEST_CASE("what going over rests on cannot be left out, and the real code has each of it") {
  struct Case {
    const char* name;
    MendModel model;
  };
  const Case cases[] = {
      {"nobody listens where its link does not go", model({"S", ""}, 0, 1, 0, MendFlaw::kUnheard)},
      {"what came over the line that it left is not polled",
       model({"SS", ""}, 0, 1, 0, MendFlaw::kUnpolled)},
      {"what the connection before told counts", model({"S", ""}, 0, 1, 0, MendFlaw::kBelated)},
      {"who hears of a later number takes its own next",
       model({"S", ""}, 1, 0, 1, MendFlaw::kOwnNumber)},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Explorer<MendModel> explored(one.model, kMost);
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
      Replay<MendScript, RealEnd> real(one.model.courses, first);
      CHECK(replay(real, *trace, kRound) == "");
      Replay<MendScript, FlawedEnd> flawed(one.model.courses, first);
      flawed.network.flaw = one.model.flaw;
      CHECK(replay(flawed, *trace, kRound) != "");
    }
  }
}
