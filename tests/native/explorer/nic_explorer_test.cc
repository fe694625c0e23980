// ATOMICs that the owner's NIC applies while their connection breaks, as a model whose states are
// all visited, and the same steps done by the real proxies. docs/ordering.md says what is modelled.
#include <doctest/doctest.h>

#include "../seed.h"
#include "mend_model.h"
#include "nic_script.h"
#include "replay.h"
#include "walk.h"

using namespace epfabric::test;

namespace {

// As the proxies have it, but for what the flaw says of an ADD that failed.
class FlawedEnd : public NicEnd {
 public:
  using NicEnd::NicEnd;
  ssize_t fetch_add(PeerIndex peer, const Piece& word, uint64_t operand, void* context) {
    last_ = {context, word, operand};
    return NicEnd::fetch_add(peer, word, operand, context);
  }
  // What is sent again and is no write comes here.
  ssize_t write_through(PeerIndex peer, const Piece& piece, void* context) {
    if (last_.context == context && flaw() == MendFlaw::kAddsAgain)
      return NicEnd::fetch_add(peer, last_.word, last_.operand, context);
    return NicEnd::write_through(peer, piece, context);
  }
  size_t poll(Completion* out, size_t capacity) {
    const size_t got = NicEnd::poll(out, capacity);
    const bool add = got == 1 && out->context == last_.context && last_.context != nullptr;
    if (add && flaw() == MendFlaw::kAddsDone) out->error = 0;
    return got;
  }

 private:
  struct Add {
    void* context;
    Piece word;
    uint64_t operand;
  };
  Add last_{};
};

}  // namespace

// As remote_mend.h has it, but that an ATOMIC is kept too.
namespace epfabric::agent {

template <>
bool RemoteTransport<FlawedEnd>::hold(Operation* operation, const Completion& completion) {
  Link& link = *operation->link;
  const bool atomic = operation->kind == Operation::Kind::kAtomic;
  if (completion.error != kBroken || link.broken || epoch_->left(link.rank)) return false;
  if (atomic && endpoint_.flaw() != MendFlaw::kAddsAgain) return false;
  if (atomic) operation->record = kNoRecord;
  operation->lost = true;
  lost_ += 1;
  link.held += 1;
  return true;
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

TEST_CASE("a NIC's ADD is applied once or ends the group, wherever its connection breaks") {
  const Instance instances[] = {
      {"mending H, 1 break", {{"H", ""}, 1}},     {"mending H, 2 breaks", {{"H", ""}, 2}},
      {"mending WH, 1 break", {{"WH", ""}, 1}},   {"mending HS, 1 break", {{"HS", ""}, 1}},
      {"mending WHS, 1 break", {{"WHS", ""}, 1}}, {"mending H beside S, 1 break", {{"H", "S"}, 1}}};
  for (const Instance& instance : instances) {
    const Explorer<MendModel> explored(instance.model, kMost);
    explored.print(instance.name);
    INFO(instance.name << ": " << text_of(explored.counterexample()));
    REQUIRE(explored.fault() == "");
    Walker walker(explored, seed(), [&] {
      return std::make_unique<Replay<MendScript, NicEnd>>(instance.model.courses, kWrap - 50);
    });
    const bool small = !kSlow && explored.edges() < 10'000;
    const Walked walked = walker.walk(small ? kMostSteps : kSomeSteps);
    print(instance.name, walked, explored.edges());
    INFO(instance.name << ": " << text_of(walked.trace));
    REQUIRE(walked.fault == "");
    CHECK((!small || walked.covered == explored.edges()));
  }
}

TEST_CASE("a NIC's ADD that failed can neither be sent again nor count as done") {
  struct Case {
    const char* name;
    MendFlaw flaw;
    Courses courses;
  };
  const Case cases[] = {
      {"an ADD is sent again", MendFlaw::kAddsAgain, {"H", ""}},
      {"an ADD that failed counts as done", MendFlaw::kAddsDone, {"H", ""}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Explorer<MendModel> explored({one.courses, 1, one.flaw}, kMost);
    explored.print(one.name);
    const std::string text = text_of(explored.counterexample());
    std::printf("explorer: %s: %s\n", one.name, text.c_str());
    REQUIRE(explored.fault() == text_of(Fault::kApplied));
    CAPTURE(text);
    const auto trace = trace_of(text);
    REQUIRE(trace);
    REQUIRE(*trace == explored.counterexample());
    for (const uint64_t first : {uint64_t{0}, kWrap - 2}) {  // one record settles the ends
      CAPTURE(first);
      Replay<MendScript, NicEnd> real(one.courses, first);
      CHECK(replay(real, *trace, kRound) == "");
      Replay<MendScript, FlawedEnd> flawed(one.courses, first);
      flawed.network.flaw = one.flaw;
      CHECK(replay(flawed, *trace, kRound) == text_of(Fault::kApplied));
    }
  }
}
