// Who applies a group's ATOMICs: the owner's agent (emulated), or each rank's one NIC (hardware).
// Decided from what every rank's agent offers, which all of them know, so that all come to the
// same. Pure. Offers travel in blob.h; session.cc makes them, epoch.cc chooses.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "error.h"

namespace epfabric::agent {

// spec.atomics.
enum class AtomicsWish : uint8_t { kAuto, kHardware, kEmulated };
inline constexpr uint32_t kWishes = 3;

// Whether one NIC can be the party that applies ATOMICs on a rank's words.
enum class AtomicsAbility : uint8_t { kAble, kNoVerbs, kSeveralNics, kUnable, kPaged, kStriped };
inline constexpr uint32_t kAbilities = 6;

struct AtomicsOffer {
  AtomicsWish wish = AtomicsWish::kAuto;
  AtomicsAbility ability = AtomicsAbility::kNoVerbs;
  uint64_t connections = std::numeric_limits<uint64_t>::max();  // that its agent has room for
};

struct AtomicsChoice {
  bool by_nic = false;
  std::string reason{};
  std::string text() const { return (by_nic ? "hardware: " : "emulated: ") + reason; }
};

inline std::string why_unable(uint32_t rank, AtomicsAbility ability) {
  const std::string who = "rank " + std::to_string(rank);
  switch (ability) {
    case AtomicsAbility::kAble:
      return "";
    case AtomicsAbility::kNoVerbs:
      return who + "'s agent does not use verbs";
    case AtomicsAbility::kSeveralNics:
      return who + " is reached by several NICs, and one's atomic is none against another's";
    case AtomicsAbility::kPaged:
      return who +
             "'s NIC applies no atomics to memory that it pages on demand (raise the limit of "
             "locked memory, ulimit -l)";
    case AtomicsAbility::kStriped:
      return who + "'s links are striped (highThroughput.nicsPerGPU is above 1)";
    default:
      return who + "'s NIC applies no atomics";
  }
}

// The first of these is what keeps NICs from it, or nothing does. `needs`: as choose_atomics() has.
inline std::string why_not_by_nic(std::span<const AtomicsOffer> offers,
                                  std::span<const uint64_t> needs) {
  for (uint32_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].ability != AtomicsAbility::kAble)
      return why_unable(rank, offers[rank].ability);
  }
  for (uint32_t rank = 0; rank < offers.size(); ++rank) {
    if (needs[rank] <= offers[rank].connections) continue;
    return "the ranks on rank " + std::to_string(rank) + "'s node would need " +
           std::to_string(needs[rank]) +
           " connections, since atomics go through the NIC to ranks of their own node too, and "
           "there is room for " +
           std::to_string(offers[rank].connections);
  }
  return "";
}

// By rank: `offers`, and `needs`, the connections that all ranks of its node have where NICs apply
// atomics. Throws NativeError where what is asked for cannot be.
inline AtomicsChoice choose_atomics(std::span<const AtomicsOffer> offers,
                                    std::span<const uint64_t> needs, bool one_node) {
  const auto first = [offers](auto&& is) {
    uint32_t rank = 0;
    while (rank < offers.size() && !is(offers[rank])) ++rank;
    return rank;
  };
  const auto wishing = [&](AtomicsWish wish) {
    return first([wish](const AtomicsOffer& offer) { return offer.wish == wish; });
  };
  const uint32_t hardware = wishing(AtomicsWish::kHardware);
  const uint32_t emulated = wishing(AtomicsWish::kEmulated);
  const bool asked = hardware < offers.size();
  if (asked && emulated < offers.size()) {
    throw NativeError("spec.atomics is hardware for rank " + std::to_string(hardware) +
                      " and emulated for rank " + std::to_string(emulated) +
                      ": it has to be the same for all ranks of a group");
  }
  if (emulated < offers.size()) return {false, "spec.atomics says so"};
  const std::string why = why_not_by_nic(offers, needs);
  if (asked && !why.empty()) {
    throw NativeError("spec.atomics is hardware, but " + why +
                      ": set it to auto or emulated, then the owner's agent applies atomics");
  }
  if (!why.empty()) return {false, why};
  if (one_node && !asked) return {false, "all ranks are on one node"};
  return {true, "one NIC reaches each rank, and applies atomics"};
}

}  // namespace epfabric::agent
