// Ends in the middle of a write. Not under TSan, which cannot see into libfabric.
#if !defined(__SANITIZE_THREAD__)

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "fabric.h"

using namespace epfabric::agent;

namespace {

constexpr size_t kBytes = 64 << 20;  // far more than sockets hold
constexpr int kLooks = 2'000'000;

// One endpoint with memory that the other one writes to.
struct End {
  explicit End(const Fabric& fabric)
      : memory(kBytes), endpoint(fabric), key(endpoint.register_memory(memory.data(), kBytes)) {}

  // Records that came; where `whole` is false, what was under way may fail.
  size_t poll(bool whole = true) {
    std::array<Completion, 8> out;
    size_t records = 0;
    for (size_t got = endpoint.poll(out.data(), out.size()); got > 0; --got) {
      if (whole) CHECK_MESSAGE(out[got - 1].error == 0, out[got - 1].detail);
      records += out[got - 1].record ? 1 : 0;
    }
    return records;
  }

  std::vector<std::byte> memory;
  FabricEndpoint endpoint;
  FabricEndpoint::LocalKey key;
};

// Until the write has begun to arrive; `to` has taken nothing else then.
void begin_write(End& from, End& to, bool imm) {
  std::fill(from.memory.begin(), from.memory.end(), std::byte{1});
  const PeerIndex peer = from.endpoint.insert({to.endpoint.address(), 0, 0});
  const Piece piece{from.memory.data(), from.key.descriptor, kBytes, to.key.remote.base,
                    to.key.remote.key};
  bool posted = false;
  for (int look = 0; to.memory[0] == std::byte{0}; ++look) {
    REQUIRE(look < kLooks);
    if (!posted)
      posted = (imm ? from.endpoint.write_with_imm(peer, {&piece, 1}, 1, &from)
                    : from.endpoint.write(peer, {&piece, 1}, &from)) == 0;
    CHECK(from.poll() == 0);
    CHECK(to.poll() == 0);
  }
  REQUIRE(to.memory.back() == std::byte{0});
}

// A small write with a record, by a third one.
void hears(const Fabric& fabric, End& to) {
  End next(fabric);
  const PeerIndex peer = next.endpoint.insert({to.endpoint.address(), 0, 0});
  const Piece piece{next.memory.data(), next.key.descriptor, 8, to.key.remote.base,
                    to.key.remote.key};
  bool posted = false;
  size_t records = 0;
  for (int look = 0; records == 0; ++look) {
    REQUIRE(look < kLooks);
    if (!posted) posted = next.endpoint.write_with_imm(peer, {&piece, 1}, 1, &next) == 0;
    next.poll();
    records += to.poll();
  }
  CHECK(records == 1);
}

}  // namespace

TEST_CASE("an endpoint that is closed amid a write of its peer ends nothing else") {
  const Fabric fabric("tcp;ofi_rxm", "127.0.0.1");
  for (const bool imm : {true, false}) {
    CAPTURE(imm);
    End from(fabric);
    auto to = std::make_unique<End>(fabric);
    begin_write(from, *to, imm);
    to.reset();
    for (int look = 0; look < 1000; ++look) CHECK(from.poll(false) == 0);
    hears(fabric, from);
  }
}

TEST_CASE("an endpoint whose peer is closed amid its write hears others on") {
  const Fabric fabric("tcp;ofi_rxm", "127.0.0.1");
  End to(fabric);
  for (const bool imm : {true, false}) {
    CAPTURE(imm);
    std::fill(to.memory.begin(), to.memory.end(), std::byte{0});
    auto from = std::make_unique<End>(fabric);
    begin_write(*from, to, imm);
    from.reset();
    hears(fabric, to);
    CHECK(to.memory.back() == std::byte{0});
  }
}

#endif
