// How two ends of a link learn of each other's queue pair: each sends the other a datagram until it
// is answered. What travels, and what becomes of what came; pure. Used by verbs_endpoint.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "error.h"
#include "stripes.h"
#include "verbs_choice.h"

namespace epfabric::agent {

// Made at random by each endpoint; known to agents of the group alone, which it comes to by TLS.
struct Token {
  uint64_t words[2];
  bool operator==(const Token&) const = default;
};

// An endpoint's address, as peers get it.
struct VerbsAddress {
  uint32_t magic = 0x20565045;  // "EPV "
  uint32_t queue = 0;           // number of the datagrams' queue pair
  uint32_t queue_key = 0;
  uint16_t lid = 0;   // InfiniBand
  uint8_t mtu = 0;    // ibv_mtu
  uint8_t reads = 0;  // that it serves at once, per queue pair
  Gid gid{};
  Token token{};
};
static_assert(sizeof(VerbsAddress) == 48);

struct Greeting {
  uint32_t magic = 0x20475045;  // "EPG "
  uint32_t domain = 0;          // the receiver's name for the sender
  Token to{}, from{};
  uint32_t queue = 0;         // the sender's queue pair for this link
  uint32_t psn = 0;           // its first packet
  uint32_t generation = 0;    // of the connection, from 1: both ends' queue pairs have the same
  uint32_t seen = 0;          // the same, once the sender is ready to receive from it; else 0
  uint32_t acknowledged = 0;  // the same, once the sender knows the receiver to be ready; else 0
  uint32_t era = 0;           // as in endpoint.h's Told
  std::array<uint32_t, kMaxLines> taken{};
};
static_assert(sizeof(Greeting) == 96);

template <class T>
std::vector<std::byte> bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* raw = reinterpret_cast<const std::byte*>(&value);
  return {raw, raw + sizeof(T)};
}

// Throws NativeError for bytes that are no endpoint's address.
inline VerbsAddress verbs_address(std::span<const std::byte> bytes) {
  VerbsAddress out;
  const uint32_t magic = out.magic;
  if (bytes.size() == sizeof(out)) std::memcpy(&out, bytes.data(), sizeof(out));
  if (bytes.size() != sizeof(out) || out.magic != magic || out.mtu < IBV_MTU_256 ||
      out.mtu > IBV_MTU_4096) {
    throw NativeError(
        "a peer's endpoint address is none of verbs: do both agents use verbs, with the same "
        "highThroughput.nicsPerGPU?");
  }
  return out;
}

// One end of a link, as far as greetings go.
struct Acquaintance {
  uint32_t generation = 1;
  uint32_t seen = 0;          // the generation, once the own queue pair is connected
  uint32_t acknowledged = 0;  // the generation, once the peer is known to be ready to receive
  uint32_t era = 0;

  // Writes may be posted. Before, the peer would not answer them.
  bool met() const { return seen != 0 && acknowledged == generation; }
};

enum class Answer : uint8_t {
  kNothing,
  kConnect,   // to the queue pair that it names, then answer
  kRepeat,    // it does not know yet that we are ready
  kConflict,  // the peer has gone on to a later connection than the one that we have
};

// Of the connection after this one.
constexpr Acquaintance again(const Acquaintance& link, uint32_t era) {
  return {link.generation + 1, 0, 0, era};
}
constexpr Acquaintance again(const Acquaintance& link) { return again(link, link.era); }

// Takes note of a greeting that is meant for this link. Only queue pairs of the same generation are
// connected, so that neither end takes an older one's for the present one. Who is behind goes on to
// the other's: with a queue pair that was never connected, and has carried nothing, at once.
// Nobody goes on to another era by itself: what came on all lines has to be told before.
inline Answer hear(Acquaintance& link, const Greeting& greeting) {
  if (greeting.era != link.era)
    return greeting.era > link.era ? Answer::kConflict : Answer::kNothing;
  if (greeting.generation < link.generation) return Answer::kNothing;
  if (greeting.generation > link.generation && link.seen != 0) return Answer::kConflict;
  if (greeting.generation > link.generation) link = {greeting.generation, 0, 0, link.era};
  if (greeting.seen == link.generation) link.acknowledged = greeting.seen;
  if (link.seen == 0) return Answer::kConnect;
  return greeting.acknowledged == greeting.generation ? Answer::kNothing : Answer::kRepeat;
}

}  // namespace epfabric::agent
