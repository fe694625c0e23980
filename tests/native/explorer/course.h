// What the pods of two ends push, and what both models and replays say of it. A course is a word:
// W is a WRITE, S a WRITE with a signal, N a signal alone, A an ADD to a word by the owner's agent,
// H one by its NIC, D a DRAIN, one after another.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace epfabric::test {

inline constexpr uint8_t kMostCommands = 4;  // of one end

using Courses = std::array<std::string_view, 2>;  // by end

constexpr bool has_bytes(char command) { return command == 'W' || command == 'S'; }
constexpr bool has_signal(char command) { return command == 'S' || command == 'N'; }
constexpr bool has_record(char command) { return has_signal(command) || command == 'A'; }
constexpr bool is_atomic(char command) { return command == 'A' || command == 'H'; }

enum class Place : uint8_t {
  kEmpty,
  kThere,
  kTaken,  // its receiver knows that it is there, and has used it for something else
};

// What can be wrong; a model and the replay's checker say the same.
enum class Fault : uint8_t {
  kNone,
  kMissing,
  kAgain,
  kSource,
  kOutOfOrder,
  kCount,
  kValue,
  kApplied,
};
inline constexpr const char* kFaults[] = {
    nullptr,
    "something said that a write is there, and it is not",
    "a write came once more, after it was known to be there",
    "a write came with other bytes, since its source was used again",
    "a record came out of order",
    "something was told taken that was never sent",
    "a signal word has a value that nobody gave it",
    "an ATOMIC was applied that was not asked for, or once more",
};
constexpr const char* text_of(Fault fault) { return kFaults[static_cast<size_t>(fault)]; }

// What stands in the memory of one end's pod: the other one's writes.
struct Places {
  std::array<Place, kMostCommands> at{};
  uint8_t applied = 0;  // ATOMICs

  // The first `count` commands of `course` are known to be there.
  Fault take(std::string_view course, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!has_bytes(course[i])) continue;
      if (at[i] == Place::kEmpty) return Fault::kMissing;
      at[i] = Place::kTaken;
    }
    return Fault::kNone;
  }
  bool all_taken(std::string_view course) const {
    for (size_t i = 0; i < course.size(); ++i) {
      if (has_bytes(course[i]) && at[i] != Place::kTaken) return false;
    }
    return true;
  }
};

// What one end's pod sees.
inline std::string visible_of(size_t signals, size_t completed, const Places& places) {
  std::string out =
      std::to_string(signals) + " signals, " + std::to_string(completed) + " completed, places ";
  for (const Place place : places.at) out += ".tX"[static_cast<size_t>(place)];
  out += " " + std::to_string(places.applied) + " applied";
  return out + "; ";
}

}  // namespace epfabric::test
