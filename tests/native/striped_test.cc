// Several lines as one endpoint: which line takes what, and groups whose links are striped over
// lines of different delay, under the checker that knows the ordering contract.
#include <doctest/doctest.h>

#include <cstdio>

#include "contract_course.h"
#include "fabric.h"
#include "lines.h"
#include "seed.h"
#include "srd_network.h"
#include "striped_endpoint.h"

using namespace epfabric;
using namespace epfabric::agent;
using namespace epfabric::test;

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kWanted = 100'000;
#else
constexpr uint64_t kWanted = 1'000'000;
#endif
constexpr Course kCourse{25'000, 2'000'000};
constexpr uint64_t kBelowWraps = (uint64_t{1} << 32) - 1500;

struct SrdLines : Lines<SrdNetwork> {  // of different delay
  bool torn = false;  // broken: a payload's immediate may take another line than its bytes
};

class StripedSrd : public StripedEndpoint<SrdEndpoint> {
 public:
  explicit StripedSrd(std::reference_wrapper<SrdLines> lines)
      : StripedEndpoint(lines.get()), torn_(lines.get().torn) {}
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    if (!torn_ || unpack_imm(imm).type != kImmPayload)
      return StripedEndpoint::write_with_imm(peer, pieces, imm, context);
    if (const ssize_t result = write(peer, pieces, nullptr); result != 0) return result;
    Piece announced = pieces[0];
    announced.bytes = 8;
    return StripedEndpoint::write_with_imm(peer, {&announced, 1}, imm, context);
  }

 private:
  const bool torn_;
};

struct Outcome {
  std::string fault;
  std::vector<uint64_t> posted;  // by line
};

Outcome run(uint64_t seed, bool torn = false) {
  std::minstd_rand random(static_cast<uint32_t>(seed));
  HandShape shape = random_shape(random);
  shape.limits.adaptive = random() % 2 == 0;
  shape.limits.first_sequence = kBelowWraps;
  SrdLines lines;
  lines.torn = torn;
  if (random() % 3 == 0) lines.selection = Selection::kRoundRobin;
  const uint32_t count = 2 + random() % 2;
  const uint64_t max_bytes = random_max_bytes(random);
  for (uint32_t i = 0; i < count; ++i) {
    SrdRules rules;
    rules.delay = i == 0 ? 1 + random() % 20 : 40 + random() % 80;
    rules.refuse_one_in = random() % 3 == 0 ? 0 : 2 + random() % 30;
    rules.queue = 8u << (random() % 6);
    rules.max_bytes = max_bytes;
    lines.add(seed + i, rules);
  }
  HandGroup<SrdLines, StripedSrd> group(shape, seed, lines);
  OrderChecker checker(group.sessions(), seed, {});
  Outcome out{play(group, lines, checker, kCourse), {}};
  for (const SrdNetwork& network : lines.networks) out.posted.push_back(network.posted());
  return out;
}

// Two endpoints, the first of which writes to the second.
struct Pair {
  SrdLines own, theirs;
  std::vector<std::byte> source = std::vector<std::byte>(1 << 10), target = source;

  // So many lines each; the networks are the same as far as both have them.
  Pair(size_t own_lines, size_t their_lines) {
    for (size_t i = 0; i < std::max(own_lines, their_lines); ++i) networks_.add(i + 1, {});
    own.lines.assign(networks_.lines.begin(), networks_.lines.begin() + long(own_lines));
    theirs.lines.assign(networks_.lines.begin(), networks_.lines.begin() + long(their_lines));
  }

 private:
  SrdLines networks_;
};

}  // namespace

TEST_CASE(
    "links that are striped over lines of different delay keep every promise of the contract") {
  uint64_t posted = 0, seeds = 0;
  std::array<uint64_t, 3> by_line{};
  for (uint64_t one = seed(); posted < wanted_operations(kWanted); ++one, ++seeds) {
    const Outcome outcome = run(one);
    INFO("one group again: EPFABRIC_SEED=" << one << " EPFABRIC_OPERATIONS=1");
    REQUIRE(outcome.fault == "");
    for (size_t i = 0; i < outcome.posted.size(); ++i) {
      CHECK(outcome.posted[i] > 0);
      by_line[i] += outcome.posted[i];
      posted += outcome.posted[i];
    }
  }
  std::printf("striped_test: %llu operations of %llu groups; %llu, %llu, %llu by line\n",
              static_cast<unsigned long long>(posted), static_cast<unsigned long long>(seeds),
              static_cast<unsigned long long>(by_line[0]),
              static_cast<unsigned long long>(by_line[1]),
              static_cast<unsigned long long>(by_line[2]));
}

TEST_CASE("an immediate that takes another line than its bytes is found by the checker") {
  std::string fault;
  for (uint64_t one = seed(); fault.empty() && one < seed() + 5; ++one)
    fault = run(one, true).fault;
  CHECK_MESSAGE(fault.find(", and write ") != std::string::npos, fault);
}

TEST_CASE("a write goes only over the lines that both ends have") {
  for (const auto& [own, theirs] : {std::pair{2, 1}, {1, 2}, {3, 2}}) {
    CAPTURE(own);
    CAPTURE(theirs);
    Pair pair(static_cast<size_t>(own), static_cast<size_t>(theirs));
    StripedSrd from(pair.own), to(pair.theirs);
    const auto source = from.register_memory(pair.source.data(), pair.source.size());
    const auto target = to.register_memory(pair.target.data(), pair.target.size());
    const PeerIndex peer = from.insert({to.address(), 0, 0});
    pair.source[100] = std::byte{7};
    const Piece piece{&pair.source[100], source.descriptor, 8, target.remote.base + 200,
                      target.remote.key};
    int posted = 0, completed = 0, arrived = 0;
    for (int i = 0; i < 20'000 && arrived < 200; ++i) {
      if (posted < 200 && from.write_with_imm(peer, {&piece, 1}, 5, &posted) == 0) posted += 1;
      std::array<Completion, 4> out;
      for (size_t got = from.poll(out.data(), out.size()); got > 0; --got) {
        CHECK(out[got - 1].context == &posted);
        completed += 1;
      }
      for (size_t got = to.poll(out.data(), out.size()); got > 0; --got) arrived += 1;
    }
    CHECK(arrived >= 200);
    CHECK(completed >= 190);
    CHECK(pair.target[200] == std::byte{7});
  }
}

TEST_CASE("a key that names no memory of the peer is refused and reaches no line") {
  Pair pair(2, 2);
  StripedSrd from(pair.own), to(pair.theirs);
  const auto source = from.register_memory(pair.source.data(), pair.source.size());
  const auto before = to.address();
  const auto target = to.register_memory(pair.target.data(), pair.target.size());
  const Piece piece{pair.source.data(), source.descriptor, 8, 0, target.remote.key};
  CHECK(from.write(from.insert({before, 0, 0}), {&piece, 1}, &pair) == -EINVAL);
  const PeerIndex known = from.insert({to.address(), 0, 0});
  Piece beyond = piece;
  beyond.key = uint64_t{1} << 60;
  CHECK(from.write(known, {&beyond, 1}, &pair) == -EINVAL);
}

TEST_CASE("an address that is cut, or of an endpoint that is not striped, is refused") {
  Pair pair(2, 2);
  StripedSrd from(pair.own), to(pair.theirs);
  const auto target = to.register_memory(pair.target.data(), pair.target.size());
  const auto whole = to.address();
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<long>(bytes));
    // Without its one key it is the address of an endpoint that has registered nothing yet.
    if (bytes == whole.size() - 2 * sizeof(uint64_t)) continue;
    CHECK_THROWS_AS(from.insert({cut, 0, 0}), NativeError);
  }
  std::vector<std::byte> many = whole;
  many[4] = std::byte{kMaxLines + 1};
  CHECK_THROWS_WITH(from.insert({many, 0, 0}), "a peer's endpoint has 9 lines");
  const std::vector<std::byte> other(48);
  CHECK_THROWS_WITH(from.insert({other, 0, 0}), doctest::Contains("is not striped"));
}

namespace {

struct TcpLines {
  std::vector<std::reference_wrapper<const Fabric>> lines;
  Selection selection = Selection::kRoundRobin;
};

}  // namespace

TEST_CASE("the descriptor to wait on becomes readable on whichever line a record comes") {
  constexpr int kLooks = 2000;  // of 10 ms
  const Fabric first("tcp;ofi_rxm", "127.0.4.1", true), second("tcp;ofi_rxm", "127.0.4.2", true);
  const TcpLines lines{{first, second}};
  StripedEndpoint<GatedFabricEndpoint> from(lines), to(lines);
  std::vector<std::byte> memory(128);
  const auto source = from.register_memory(memory.data(), 64);
  const auto target = to.register_memory(memory.data() + 64, 64);
  const PeerIndex peer = from.insert({to.address(), 0, 0});
  const Piece piece{memory.data(), source.descriptor, 32, target.remote.base, target.remote.key};
  std::array<Completion, 8> out;
  const auto taken = [&] {
    size_t records = 0;
    for (size_t got = to.poll(out.data(), out.size()); got > 0; --got)
      records += out[got - 1].record ? 1 : 0;
    return records;
  };
  for (int round = 0; round < 10; ++round) {
    CAPTURE(round);
    int fd = kPollFirst;
    for (int look = 0; fd == kPollFirst && look < kLooks; ++look) {
      if ((fd = to.wait_fd()) == kPollFirst) CHECK(taken() == 0);
    }
    REQUIRE(fd >= 0);
    const bool connects = round < 2;  // a line each, in turn: that needs both ends
    size_t records = 0;
    for (int look = 0; from.write_with_imm(peer, {&piece, 1}, 1, &memory) != 0; ++look) {
      REQUIRE(look < 10 * kLooks);
      from.poll(out.data(), out.size());
      if (connects) records += taken();
    }
    pollfd wait{fd, POLLIN, 0};
    for (int look = 0; records == 0 && look < kLooks; ++look) {
      from.poll(out.data(), out.size());
      if (::poll(&wait, 1, 10) == 1 || connects) records += taken();
    }
    CHECK(records == 1);
  }
}
