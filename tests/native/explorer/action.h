// One step of a modelled protocol, by name: what an explorer finds and a replay does. Printed and
// read back as `verb end index`, with the line behind its end, so that a counterexample can be kept
// as text.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace epfabric::test {

enum class Verb : uint8_t {
  kPush,      // the end's pod pushes its next command, and its proxy has a turn
  kTurn,      // its proxy has a turn
  kStore,     // its oldest write that is not done (or no. `index`) is done at the peer
  kAnswer,    // its oldest write that is done completes
  kComplete,  // its write no. `index` completes, and its proxy has a turn
  kAnnounce,  // the immediate of its write no. `index` arrives, and the peer's proxy has a turn
  kLate,      // a packet of the peer's connection that broke arrives at this end
  kBreak,     // its connection breaks here; `index` writes are still in the network
  kGiveUp,    // the same, since the peer does not answer
  kGreet,     // it sends a greeting
  kHear,      // greeting no. `index` of those on their way to it arrives
  kKill,      // its connection breaks here for good, and nothing gets through any more
  // Of nodes that meet in barriers:
  kEnter,  // its ranks have entered
  kSend,   // it sends what is due
  kTake,   // the oldest message of node `index` arrives
  kLeave,  // it lets its ranks go; of a link, an end waits for its line no more
  kMask,   // all of its ranks are masked, everywhere
  kLose,   // it waits for node `index` no more
  kLast = kLose,
};

inline constexpr const char* kVerbs[] = {
    "push",  "turn", "store", "answer", "complete", "announce", "late",  "break", "give-up",
    "greet", "hear", "kill",  "enter",  "send",     "take",     "leave", "mask",  "lose"};

struct Action {
  Verb verb = Verb::kTurn;
  uint8_t end = 0;
  uint8_t index = 0;
  uint8_t line = 0;  // of a link over several
  bool operator==(const Action&) const = default;
};
using Trace = std::vector<Action>;

inline std::string text_of(const Trace& trace) {
  std::string out;
  for (const Action& action : trace) {
    out += out.empty() ? "" : ", ";
    out += kVerbs[static_cast<size_t>(action.verb)];
    out += std::string(" ") + static_cast<char>('a' + action.end);
    out +=
        (action.line > 0 ? std::to_string(action.line) : "") + " " + std::to_string(action.index);
  }
  return out;
}

// Nothing for a text that is no trace.
inline std::optional<Trace> trace_of(const std::string& text) {
  Trace out;
  std::istringstream steps(text);
  for (std::string step; std::getline(steps, step, ',');) {
    std::istringstream words(step);
    std::string verb, end, rest;
    unsigned index = 0;
    if (!(words >> verb >> end >> index) || words >> rest || index > 255) return {};
    const char line = end.size() == 2 ? end[1] : '0';
    if (end.size() > 2 || end[0] < 'a' || end[0] > 'd' || line < '0' || line > '9') return {};
    size_t at = 0;
    while (at <= static_cast<size_t>(Verb::kLast) && verb != kVerbs[at]) ++at;
    if (at > static_cast<size_t>(Verb::kLast)) return {};
    out.push_back({static_cast<Verb>(at), static_cast<uint8_t>(end[0] - 'a'),
                   static_cast<uint8_t>(index), static_cast<uint8_t>(line - '0')});
  }
  return out;
}

}  // namespace epfabric::test
