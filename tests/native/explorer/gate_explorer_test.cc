// The gate over a network without order, as a model whose states are all visited, and the same
// steps done by the real proxies. docs/ordering.md says what is modelled.
#include <doctest/doctest.h>

#include "../seed.h"
#include "gate_model.h"
#include "gate_script.h"
#include "replay.h"
#include "walk.h"

using namespace epfabric::test;

namespace {

// Proxies of which this test leaves out what a flaw says.
class FlawedEnd : public GateEnd {
 public:
  using GateEnd::GateEnd;
  GateFlaw flaw() const { return network().flaw; }
};

}  // namespace

namespace epfabric::agent {

// As remote_arrivals.h has it, but for what the flaw leaves out.
template <>
template <class Take, class Fail>
void RemoteTransport<FlawedEnd>::take_arrival(Link& link, const Imm& imm, Take&& take,
                                              Fail&& fail) {
  const int rank = static_cast<int>(link.rank);
  const GateFlaw flaw = endpoint_.flaw();
  if (imm.type == kImmCredit) {
    if (!link.gate->departures.acknowledge(imm.sequence))
      return fail(rank, "it sent credit for what was not sent");
    return note_acknowledged(link);
  }
  const auto take_one = [&] {
    ControlRecord record;
    link.inbox.take(record);
    if (const char* fault = take_record(link, record, take); fault != nullptr) fail(rank, fault);
  };
  Arrivals& arrivals = link.gate->arrivals;
  Step step = imm.type == kImmControl ? Step::kRecord
              : imm.type == kImmAsk   ? Step::kAsk
                                      : Step::kPayload;
  if (flaw == GateFlaw::kUnasked && step == Step::kAsk) step = Step::kPayload;
  if (flaw == GateFlaw::kNoWrap && imm.sequence < static_cast<uint16_t>(arrivals.taken())) return;
  const Arrivals::Came came = arrivals.arrive(imm.sequence, step);
  if (came == Arrivals::Came::kAgain && flaw == GateFlaw::kTwice)
    (void)arrivals.arrive(static_cast<uint16_t>(arrivals.taken()), step);
  if (flaw == GateFlaw::kAtOnce && came == Arrivals::Came::kNew && step == Step::kRecord)
    take_one();
  while (arrivals.next(step)) {
    if (step == Step::kRecord && flaw != GateFlaw::kAtOnce) take_one();
  }
}

// As remote_post.h has it, but for what the flaw leaves out.
template <>
bool RemoteTransport<FlawedEnd>::drain(Ring& ring, uint64_t& serial) {
  if (behind_.empty() || endpoint_.flaw() == GateFlaw::kAtCompletion) return true;
  serial = ++drains_;
  if (!post_marker(*links_[0], &ring)) return false;
  ring.add_part();
  return true;
}

}  // namespace epfabric::agent

namespace {

constexpr uint64_t kBelow16 = (uint64_t{1} << 16) - 50, kBelow32 = (uint64_t{1} << 32) - 50;
constexpr uint64_t kSettling = 2;  // operations of an end, before a course begins
constexpr size_t kMost = 1'000'000;

struct Instance {
  const char* name;
  GateModel model;
};

// Both ends do all that they may.
const Trace kRound = [] {
  Trace out;
  for (uint8_t e = 0; e < 2; ++e) {
    out.push_back({Verb::kPush, e, 0});
    for (uint8_t i = 0; i < GateModel::kCredits + GateModel::kMostCredits; ++i) {
      for (const Verb verb : {Verb::kStore, Verb::kAnnounce, Verb::kComplete})
        out.push_back({verb, e, i});
    }
    out.push_back({Verb::kTurn, e, 0});
  }
  return out;
}();

}  // namespace

TEST_CASE("whatever order operations arrive in, signals and DRAINs keep their promise") {
  const Instance instances[] = {{"gate WS, all repeated", {{"WS", ""}, 3}},
                                {"gate WD beside N", {{"WD", "N"}, 1}},
                                {"gate WSD", {{"WSD", ""}, 1}},
                                {"gate SS", {{"SS", ""}, 1}},
                                {"gate WSSD", {{"WSSD", ""}, 1}},
                                {"gate WSD beside N", {{"WSD", "N"}, 1}}};
  for (const Instance& instance : instances) {
    const Explorer<GateModel> explored(instance.model, kMost);
    explored.print(instance.name);
    INFO(instance.name << ": " << text_of(explored.counterexample()));
    REQUIRE(explored.fault() == "");
    for (const uint64_t first : {kBelow16, kBelow32}) {
      Walker walker(explored, seed(), [&] {
        return std::make_unique<Replay<GateScript, GateEnd>>(instance.model.courses, first);
      });
      const bool small = !kSlow && explored.edges() < 20'000;
      const Walked walked = walker.walk(small ? kMostSteps : kSomeSteps);
      print(instance.name, walked, explored.edges());
      INFO(instance.name << ": " << text_of(walked.trace));
      REQUIRE(walked.fault == "");
      CHECK((!small || walked.covered == explored.edges()));
    }
  }
}

TEST_CASE("what the gate rests on cannot be left out, and the real code has each of it") {
  struct Case {
    const char* name;
    GateFlaw flaw;
    Courses courses;
  };
  const Case cases[] = {
      {"a record is taken at once", GateFlaw::kAtOnce, {"WS", ""}},
      {"what comes twice counts twice", GateFlaw::kTwice, {"WS", ""}},
      {"sequences do not wrap", GateFlaw::kNoWrap, {"WS", ""}},
      {"an ask is not answered", GateFlaw::kUnasked, {"WD", ""}},
      {"a DRAIN waits for completions", GateFlaw::kAtCompletion, {"WD", ""}},
  };
  constexpr uint8_t kRepeats = 1;
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Explorer<GateModel> explored({one.courses, kRepeats, one.flaw, 0xffff}, kMost);
    explored.print(one.name);
    const std::string text = text_of(explored.counterexample());
    std::printf("explorer: %s: %s\n", one.name, text.c_str());
    REQUIRE(explored.fault() != "");
    CAPTURE(text);
    const auto trace = trace_of(text);
    REQUIRE(trace);
    REQUIRE(*trace == explored.counterexample());
    for (const uint64_t wrap : {uint64_t{1} << 16, uint64_t{1} << 32}) {
      CAPTURE(wrap);
      Replay<GateScript, GateEnd> real(one.courses, wrap - kSettling - 1);
      real.network.repeats = kRepeats;
      CHECK(replay(real, *trace, kRound) == "");
      Replay<GateScript, FlawedEnd> flawed(one.courses, wrap - kSettling - 1);
      flawed.network.flaw = one.flaw;
      flawed.network.repeats = kRepeats;
      CHECK(replay(flawed, *trace, kRound) != "");
    }
  }
}
