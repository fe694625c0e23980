// Fuzz: what other agents' cores say of themselves: session descriptions, addresses of verbs
// endpoints, greetings. Anything is either a NativeError or within its limits.
// Input: the kind, then the bytes as they come.
#include <epfabric/layout.h>

#include "blob.h"
#include "fuzz.h"
#include "region.h"
#include "verbs_greeting.h"

namespace epfabric::agent {
namespace {

void description(std::span<const std::byte> bytes) {
  SessionBlob blob;
  try {
    blob = decode(bytes);
  } catch (const NativeError&) {
    return;
  }
  const auto back = encode(blob);
  require(std::ranges::equal(back, bytes), "a description survives");
  require(blob.rank < kMaxRanks && blob.world >= 1 && blob.world <= kMaxRanks, "ranks");
  require(blob.rank < blob.world, "a rank of its world");
  require(blob.rings >= 1 && blob.rings <= kMaxRings, "rings");
  require(blob.signals >= 1 && blob.signals <= kMaxSignals, "signals");
  require(!blob.proxies.empty() && blob.proxies.size() <= kMaxProxies, "proxies");
  require(blob.regions.size() <= kMaxRegions, "regions");
  uint64_t end = 0;
  for (const Extent& region : blob.regions) {
    require(region.begin >= end && region.end > region.begin && region.end <= kMaxRankBytes,
            "regions one after the other");
    end = region.end;
  }
  for (const ProxyBlob& proxy : blob.proxies)
    require(proxy.regions.size() == blob.regions.size(), "a key for each region");
}

void address(std::span<const std::byte> bytes) {
  try {
    const VerbsAddress out = verbs_address(bytes);
    require(out.mtu >= IBV_MTU_256 && out.mtu <= IBV_MTU_4096, "an MTU that there is");
    require(std::ranges::equal(bytes_of(out), bytes), "an address survives");
  } catch (const NativeError&) {
  }
}

// One end of a link, whose peer says whatever it likes; it breaks and is made anew in between.
void acquaintance(Input& input) {
  Acquaintance link;
  while (input.left() != 0) {
    const Acquaintance before = link;
    if (input.get<uint8_t>() % 8 == 7) {
      link = again(link);
      require(link.generation == before.generation + 1 && !link.met(), "it is to meet again");
      continue;
    }
    const auto greeting = input.get<Greeting>();
    const Answer answer = hear(link, greeting);
    if (answer == Answer::kConnect) {
      require(before.seen == 0, "one connection at a time");
      require(greeting.generation == link.generation, "both ends' are of one generation");
      link.seen = greeting.generation;
    }
    require(link.generation >= before.generation, "an old queue pair is never met again");
    require(link.generation == before.generation || before.seen == 0,
            "a connection keeps its generation");
    require(link.acknowledged == 0 || link.acknowledged == link.generation,
            "the peer is ready for this queue pair or for none");
    require(before.seen == 0 || link.seen == before.seen, "a peer is changed by again() only");
    require(!before.met() || link.met(), "who has met, has met");
  }
}

}  // namespace

void fuzz(Input& input) {
  const auto kind = input.get<uint8_t>() % 3;
  if (kind == 0) return description(input.take(input.left()));
  if (kind == 1) return address(input.take(input.left()));
  acquaintance(input);
}

std::vector<std::vector<std::byte>> seeds() {
  SessionBlob blob{3, 8, 4, 16, {{0, 4096}, {65536, 131072}}, {}};
  for (uint64_t i = 0; i < 2; ++i)
    blob.proxies.push_back({{std::byte{1}, std::byte{2}}, {11, 22}, {{33, 44}, {55, 66 + i}}});
  const auto of_kind = [](uint8_t kind, const std::vector<std::byte>& bytes) {
    std::vector<std::byte> out{std::byte{kind}};
    out.insert(out.end(), bytes.begin(), bytes.end());
    return out;
  };
  VerbsAddress verbs;
  verbs.mtu = IBV_MTU_4096;
  Output greetings;
  for (uint32_t i = 0; i < 6; ++i) {
    Greeting greeting;
    greeting.generation = 1 + i / 3;
    greeting.seen = greeting.acknowledged = i % 3 == 0 ? 0 : 1 + i / 3;
    greetings.put(static_cast<uint8_t>(0));
    greetings.put(greeting);
    if (i == 2) greetings.put(static_cast<uint8_t>(7));
  }
  return {of_kind(0, encode(blob)), of_kind(1, bytes_of(verbs)), of_kind(2, greetings.bytes)};
}

}  // namespace epfabric::agent
