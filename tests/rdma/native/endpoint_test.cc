// A verbs endpoint over soft RoCE: meeting, writes in order, records, full queues, errors.
#include <poll.h>

#include <deque>

#include "ends.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

void fill(End& end, uint64_t from, uint64_t bytes, int seed) {
  for (uint64_t i = 0; i < bytes; ++i)
    end.memory[from + i] = static_cast<std::byte>(i * 7 + static_cast<uint64_t>(seed));
}

bool holds(const End& end, uint64_t from, uint64_t bytes, int seed) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (end.memory[from + i] != static_cast<std::byte>(i * 7 + static_cast<uint64_t>(seed)))
      return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a payload lies there when its record is seen, and both are one operation") {
  Ends ends;
  ends.link(0);
  for (int round = 0; round < 200; ++round) {
    const uint64_t bytes = round % 2 == 0 ? 16 : 9000;  // inside the request, and over two packets
    fill(ends.a, 0, bytes, round);
    fill(ends.a, 20000, 32, round + 1);
    Probe probe;
    const Piece pieces[] = {ends.a.piece(0, bytes, ends.b, 100),
                            ends.a.piece(20000, 32, ends.b, 20000)};
    const auto imm = static_cast<uint32_t>(round * 1000003);
    REQUIRE(ends.a.endpoint.write_with_imm(ends.to_b, pieces, imm, &probe) == 0);
    ends.until([&] { return ends.b.records.size() == static_cast<size_t>(round + 1); });
    CHECK(ends.b.records.back() == imm);
    CHECK(holds(ends.b, 100, bytes, round));
    CHECK(holds(ends.b, 20000, 32, round + 1));
    ends.until([&] { return probe.error != -1; });
    CHECK(probe.error == 0);
  }
}

TEST_CASE("what completes behind writes tells that they are visible") {
  Ends ends;
  ends.link(0);
  std::deque<Probe> probes(41);
  for (int i = 0; i < 40; ++i) {
    fill(ends.a, static_cast<uint64_t>(i) * 1024, 1024, i);
    const Piece piece = ends.a.piece(static_cast<uint64_t>(i) * 1024, 1024, ends.b,
                                     static_cast<uint64_t>(i) * 1024);
    REQUIRE(ends.a.endpoint.write(ends.to_b, {&piece, 1}, &probes[static_cast<size_t>(i)]) == 0);
  }
  const Piece last = ends.a.piece(60000, 8, ends.b, 60000);
  REQUIRE(ends.a.endpoint.write_through(ends.to_b, last, &probes[40]) == 0);
  const uint64_t begin = platform::clock_ns();
  while (probes[40].error == -1 && platform::clock_ns() - begin < kLimitNs) ends.a.poll();
  CHECK(probes[40].error == 0);
  for (int i = 0; i < 40; ++i) CHECK(holds(ends.b, static_cast<uint64_t>(i) * 1024, 1024, i));
}

TEST_CASE("a full send queue is busy, not an error, and is emptied") {
  Ends ends;
  ends.link(0);
  std::deque<Probe> probes;
  ssize_t result = 0;
  while (result == 0 && probes.size() < 100'000) {
    probes.emplace_back();
    const Piece pieces[] = {ends.a.piece(0, 4096, ends.b, 0), ends.a.piece(0, 32, ends.b, 8192)};
    result = ends.a.endpoint.write_with_imm(ends.to_b, pieces, 1, &probes.back());
  }
  CHECK(result == -EAGAIN);
  probes.pop_back();
  CHECK(probes.size() == 96);  // 2 · 64 + 64 requests, two for each
  ends.until([&] { return ends.b.records.size() == probes.size() && probes.back().error != -1; });
  for (const Probe& probe : probes) CHECK(probe.error == 0);
  probes.emplace_back();
  const Piece piece = ends.a.piece(0, 16, ends.b, 0);
  CHECK(ends.a.endpoint.write(ends.to_b, {&piece, 1}, &probes.back()) == 0);
  ends.until([&] { return probes.back().error == 0; });
}

TEST_CASE("a wrong key ends its link with a reason at both ends, and no other link") {
  for (const bool second : {false, true}) {  // the payload's, or the record's behind it
    CAPTURE(second);
    Ends ends;
    ends.link(0);
    const PeerIndex bad_to_b = ends.to_b, bad_to_a = ends.to_a;
    ends.link(1);
    fill(ends.b, 0, 64, 1);
    Probe before, bad, after, other;
    Piece pieces[] = {ends.a.piece(30000, 16, ends.b, 0), ends.a.piece(30000, 32, ends.b, 100)};
    REQUIRE(ends.a.endpoint.write_with_imm(bad_to_b, pieces, 1, &before) == 0);
    ends.until([&] { return before.error == 0; });
    fill(ends.b, 0, 64, 1);
    pieces[second ? 1 : 0].key ^= 0x5a00;
    REQUIRE(ends.a.endpoint.write_with_imm(bad_to_b, pieces, 2, &bad) == 0);
    REQUIRE(ends.a.endpoint.write_with_imm(bad_to_b, pieces, 3, &after) == 0);
    ends.until([&] { return bad.error != -1 && after.error != -1; });
    CHECK(bad.error != 0);
    CHECK(bad.detail.find("remote access error") != std::string::npos);
    CHECK(after.error != 0);
    if (!second) CHECK(holds(ends.b, 0, 64, 1));
    CHECK(ends.a.endpoint.fault(bad_to_b) == bad.detail);
    CHECK(ends.a.endpoint.write(bad_to_b, {pieces, 1}, &bad) == -ENOTCONN);
    const Piece good = ends.a.piece(0, 16, ends.b, 0);
    REQUIRE(ends.a.endpoint.write(ends.to_b, {&good, 1}, &other) == 0);
    ends.until([&] { return other.error != -1; });
    CHECK(other.error == 0);
    CHECK(ends.b.records.size() == 1);
    // The receiver learns of it by an event, or when it writes itself.
    Probe back;
    const Piece answer = ends.b.piece(0, 16, ends.a, 0);
    ends.b.endpoint.attend();
    if (ends.b.endpoint.met(bad_to_a) && ends.b.endpoint.fault(bad_to_a).empty()) {
      REQUIRE(ends.b.endpoint.write(bad_to_a, {&answer, 1}, &back) == 0);
      ends.until([&] { return back.error != -1; });
      CHECK(back.error != 0);
    }
    const std::string said = ends.b.endpoint.fault(bad_to_a) + ends.b.endpoint.broken_by(bad_to_a);
    CHECK_FALSE(said.empty());
  }
}

TEST_CASE("what is under way on a killed queue pair fails with the reason, each once") {
  Ends ends;
  ends.link(0);
  std::deque<Probe> probes(8);
  const Piece pieces[] = {ends.a.piece(0, 8192, ends.b, 0), ends.a.piece(0, 32, ends.b, 8192)};
  ends.b.endpoint.kill(ends.to_a, "so that it answers nothing");
  for (Probe& probe : probes)
    REQUIRE(ends.a.endpoint.write_with_imm(ends.to_b, pieces, 1, &probe) == 0);
  ends.a.endpoint.kill(ends.to_b, "the test ends it");
  ends.until([&] {
    return std::all_of(probes.begin(), probes.end(), [](const Probe& p) { return p.error != -1; });
  });
  for (const Probe& probe : probes) {
    CHECK(probe.error != 0);
    CHECK(probe.detail == "the test ends it");
  }
  CHECK(ends.b.records.empty());
}

TEST_CASE("the descriptor to wait on becomes readable when a record comes") {
  Ends ends;
  ends.link(0);
  const Piece piece = ends.a.piece(0, 32, ends.b, 0);
  for (int round = 0; round < 20; ++round) {
    int fd = kPollFirst;
    for (int looks = 0; fd == kPollFirst && looks < 10; ++looks) {
      while (ends.b.poll() > 0) {
      }
      fd = ends.b.endpoint.wait_fd();
    }
    REQUIRE(fd >= 0);
    const size_t before = ends.b.records.size();
    Probe probe;
    REQUIRE(ends.a.endpoint.write_with_imm(ends.to_b, {&piece, 1}, 7, &probe) == 0);
    pollfd wait{fd, POLLIN, 0};
    CHECK(::poll(&wait, 1, static_cast<int>(kLimitNs / 1'000'000)) == 1);
    while (ends.b.poll() > 0) {
    }
    CHECK(ends.b.records.size() == before + 1);
    ends.until([&] { return probe.error == 0; });
  }
}

TEST_CASE("a datagram without the right tokens connects nothing") {
  Ends ends;
  VerbsAddress wrong = verbs_address(ends.b.endpoint.address());
  wrong.token.words[0] ^= 1;
  const auto at_a = ends.a.endpoint.address();
  const PeerIndex to_b = ends.a.endpoint.insert({bytes_of(wrong), 0, 0});
  const PeerIndex to_a = ends.b.endpoint.insert({at_a, 0, 0});
  for (int i = 0; i < 200; ++i) {
    ends.a.endpoint.meet();
    ends.b.endpoint.meet();
    ends.a.poll();
    ends.b.poll();
  }
  CHECK_FALSE(ends.a.endpoint.met(to_b));
  CHECK_FALSE(ends.b.endpoint.met(to_a));
}

TEST_CASE("what cannot be opened says why") {
  CHECK_THROWS_WITH(VerbsEndpoint({"none0", 1, "10.9.0.1"}),
                    doctest::Contains("there is no RDMA device none0 here, only: ra0"));
  CHECK_THROWS_WITH(VerbsEndpoint({"ra0", 7, "10.9.0.1"}), doctest::Contains("does not exist"));
  CHECK_THROWS_WITH(VerbsEndpoint({"ra0", 1, "10.9.0.9"}),
                    doctest::Contains("has no GID 10.9.0.9"));
  CHECK_THROWS_WITH(VerbsEndpoint({"ra0", 1, "here"}), doctest::Contains("is no GID"));
}
