// What groups take of an agent, as planned, against what the transport makes of them; and that what
// does not fit is refused before anything is connected.
#include "budget.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <filesystem>
#include <random>

#include "cores.h"
#include "seed.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

struct Files {
  uint64_t open = 0, connections = 0;
};
Files files_now() {
  Files out;
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    out.open += 1;
    sockaddr_storage peer{};
    socklen_t bytes = sizeof(peer);
    const int fd = std::stoi(file.path().filename());
    const bool connected = ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0;
    out.connections += connected && peer.ss_family == AF_INET ? 1 : 0;
  }
  return out;
}

std::string refusal_of(const std::vector<uint32_t>& node_of, const std::vector<uint32_t>& proxies,
                       const DeviceLimits& limits = {}) {
  std::vector<uint32_t> local;
  for (uint32_t rank = 0; rank < node_of.size(); ++rank)
    if (node_of[rank] == node_of[0]) local.push_back(rank);
  return over(Census(node_of, proxies), local, proxies, 1, limits);
}

}  // namespace

TEST_CASE("connections are counted as partners are, whatever each rank's number of proxies") {
  std::mt19937_64 random(epfabric::test::seed());
  for (int round = 0; round < 50; ++round) {
    const auto world = static_cast<uint32_t>(1 + random() % 40);
    std::vector<uint32_t> node_of(world), proxies(world);
    for (uint32_t rank = 0; rank < world; ++rank) {
      node_of[rank] = rank == 0 ? 0 : node_of[rank - 1] + static_cast<uint32_t>(random() % 2);
      proxies[rank] = static_cast<uint32_t>(1 + random() % kMaxProxies);
    }
    const Census census(node_of, proxies);
    uint64_t there = 0, all = 0;
    for (uint32_t rank = 0; rank < world; ++rank) {
      for (uint32_t proxy = 0; proxy < proxies[rank]; ++proxy) {
        uint64_t links = 0;
        for (uint32_t other = 0; other < world; ++other) {
          if (node_of[other] == node_of[rank]) continue;
          for (uint32_t s = 0; s < proxies[other]; ++s)
            links += partners(s, proxies[other], proxy, proxies[rank]) ? 1 : 0;
        }
        REQUIRE(census.links(rank, proxy) == links);
        there += links;
      }
      all += census.links(rank);
    }
    CHECK(there == all);
  }
}

TEST_CASE("what does not fit is refused with the numbers") {
  std::vector<uint32_t> node_of(300), proxies(300, 16);
  for (uint32_t rank = 0; rank < 300; ++rank) node_of[rank] = rank / 2;
  CHECK(refusal_of(node_of, proxies) == "");
  proxies[7] = 1;  // partner of all sixteen of each other rank
  CHECK(refusal_of(node_of, proxies)
            .find("a proxy of rank 7 (which has 1) needs 4768 mailboxes in a group of 300 ranks, "
                  "and there "
                  "are at most 4096 at one proxy") == 0);
  proxies[7] = 16;
  const DeviceLimits few{.connections = 9535, .of = "of so many"};
  CHECK(refusal_of(node_of, proxies, few)
            .find("2 rank(s) on this node need 9536 connections to the "
                  "other nodes' ranks, and there is room for 9535 "
                  "(of so many)") != std::string::npos);
  CHECK(refusal_of(node_of, proxies, {.registrations = 2}).find("takes 2") != std::string::npos);
  CHECK(refusal_of(node_of, proxies, {.connections = 9536, .registrations = 3}) == "");
}

TEST_CASE("over tcp a connection is a file, and too few files are told before they run out") {
  GroupShape shape{{{0, 1}, {2}}, {2, 3}};
  shape.settings.provider = "tcp;ofi_rxm";
  const uint64_t before = files_now().connections;
  CoreGroup fits(shape);
  CHECK(files_now().connections - before == 12);  // both ends are here
  const uint64_t open = files_now().open;
  fits.close();
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit few{open + 128, files.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  std::string error;
  try {
    CoreGroup group(shape);
  } catch (const NativeError& refused) {
    error = refused.what();
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  CAPTURE(error);
  CHECK(error.find("rank(s) on this node need 6 connections") != std::string::npos);
  CHECK(error.find("ulimit -n") != std::string::npos);
}
