// Session descriptions from another machine: what was encoded comes back, anything else is an
// error.
#include "blob.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <random>

#include "error.h"

using namespace epfabric::agent;

namespace {

SessionBlob sample() {
  SessionBlob blob{3,
                   8,
                   4,
                   16,
                   {{0, 4096}, {65536, 131072}},
                   {},
                   {AtomicsWish::kHardware, AtomicsAbility::kPaged, 5000}};
  for (uint64_t i = 0; i < 2; ++i) {
    blob.proxies.push_back({{std::byte{2}, std::byte{0}}, {11 + i, 22}, {{33, 44}, {55, 66 + i}}});
  }
  blob.foreign = 2;
  return blob;
}

}  // namespace

TEST_CASE("a description survives the journey") {
  const SessionBlob back = decode(encode(sample()));
  CHECK(back.rank == 3);
  CHECK(back.regions[1].end == 131072);
  CHECK(back.proxies[1].mailbox.key == 12);
  CHECK(back.proxies[1].regions[1].base == 67);
  CHECK(back.proxies[0].address.size() == 2);
  CHECK(back.atomics.wish == AtomicsWish::kHardware);
  CHECK(back.atomics.ability == AtomicsAbility::kPaged);
  CHECK(back.atomics.connections == 5000);
  CHECK(back.foreign == 2);
}

TEST_CASE("every cut and every extra byte is an error") {
  std::vector<std::byte> bytes = encode(sample());
  for (size_t n = 0; n < bytes.size(); ++n) {
    CHECK_THROWS_AS(decode(std::span(bytes).first(n)), NativeError);
  }
  bytes.push_back(std::byte{0});
  CHECK_THROWS_AS(decode(bytes), NativeError);
}

TEST_CASE("memory of a device that is in no region is an error") {
  SessionBlob blob = sample();
  blob.foreign = 4;
  CHECK_THROWS_AS(decode(encode(blob)), NativeError);
}

TEST_CASE("a rank outside of its world is an error") {
  SessionBlob blob = sample();
  blob.rank = blob.world - 1;
  CHECK(decode(encode(blob)).rank == 7);
  blob.rank = blob.world;
  CHECK_THROWS_AS(decode(encode(blob)), NativeError);
}

TEST_CASE("changed bytes give an error or a description within its limits") {
  const uint64_t seed = std::random_device{}();
  std::printf("blob_test seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const std::vector<std::byte> good = encode(sample());
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = good;
    for (uint64_t n = 1 + random() % 3; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    try {
      const SessionBlob blob = decode(bytes);
      REQUIRE(blob.rings <= 64);
      REQUIRE(!blob.proxies.empty());
      uint64_t end = 0;
      for (const Extent& region : blob.regions) {
        REQUIRE(region.begin >= end);
        REQUIRE(region.end > region.begin);
        end = region.end;
      }
    } catch (const NativeError&) {
    }
  }
}
