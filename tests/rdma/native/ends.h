// Two endpoints of one process on the two ends of a rail that rails.sh laid out, with a page of
// memory each, moved by hand; for the tests of a verbs endpoint.
#pragma once

#include <doctest/doctest.h>
#include <epfabric/platform.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "verbs_endpoint.h"

namespace epfabric::agent {

inline constexpr uint64_t kLimitNs = 60'000'000'000;
inline constexpr uint64_t kPage = 65536;

inline VerbsPort port_at(char end, int rail) {
  const std::string number = std::to_string(rail);
  return {std::string("r") + end + number, 1, "10.9." + number + (end == 'a' ? ".1" : ".2"), 64};
}
inline VerbsPort port_at(char end, int rail, uint32_t psn) {
  VerbsPort out = port_at(end, rail);
  out.psn = psn;
  return out;
}

inline uint64_t sent_packets(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts");
  uint64_t out = 0;
  file >> out;
  return out;
}

// What an operation begins with, and what came of it.
struct Probe {
  std::array<void*, 8> context{};
  int error = -1;  // it is under way
  std::string detail;
};

struct End {
  VerbsEndpoint endpoint;
  std::vector<std::byte> memory = std::vector<std::byte>(kPage);
  VerbsEndpoint::LocalKey key;
  std::vector<uint32_t> records;

  explicit End(const VerbsPort& port)
      : endpoint(port), key(endpoint.register_memory(memory.data(), memory.size())) {}

  Piece piece(uint64_t from, uint64_t bytes, const End& to, uint64_t at) const {
    return {memory.data() + from, key.descriptor, bytes, to.key.remote.base + at,
            to.key.remote.key};
  }
  size_t poll(size_t capacity = 64) {
    std::array<Completion, 64> out;
    const size_t got = endpoint.poll(out.data(), capacity);
    for (size_t i = 0; i < got; ++i) {
      if (out[i].record) {
        records.push_back(static_cast<uint32_t>(out[i].imm));
        continue;
      }
      auto* probe = static_cast<Probe*>(out[i].context);
      REQUIRE(probe != nullptr);
      CHECK(probe->error == -1);  // it is told of once
      probe->error = out[i].error;
      probe->detail = out[i].detail;
    }
    return got;
  }
};

struct Ends {
  End a, b;
  PeerIndex to_b = 0, to_a = 0;

  explicit Ends(const VerbsPort& at_a = port_at('a', 0), const VerbsPort& at_b = port_at('b', 0))
      : a(at_a), b(at_b) {}

  template <class Done>
  void until(Done&& done) {
    const uint64_t begin = platform::clock_ns();
    while (!done()) {
      REQUIRE(platform::clock_ns() - begin < kLimitNs);
      a.poll();
      b.poll();
    }
  }
  // One more link between the two.
  void link(uint32_t domain) {
    const auto at_a = a.endpoint.address(), at_b = b.endpoint.address();
    to_b = a.endpoint.insert({at_b, domain, domain});
    to_a = b.endpoint.insert({at_a, domain, domain});
    until([&] {
      a.endpoint.meet();
      b.endpoint.meet();
      return a.endpoint.met(to_b) && b.endpoint.met(to_a);
    });
  }
  // Makes the link anew at both ends, of which at least one has broken; each says how many records
  // it has.
  void mend() {
    bool broken_a = false, broken_b = false;
    const auto step = [](End& end, PeerIndex peer, bool& broken) {
      PeerIndex found = 0;
      if (end.endpoint.next_broken(found)) broken = true;
      if (broken && end.endpoint.sever(peer)) {
        end.endpoint.remake(peer, {0, {static_cast<uint32_t>(end.records.size())}});
        broken = false;
      }
      end.endpoint.meet();
    };
    until([&] {
      step(a, to_b, broken_a);
      step(b, to_a, broken_b);
      return !broken_a && !broken_b && a.endpoint.met(to_b) && b.endpoint.met(to_a);
    });
  }
};

}  // namespace epfabric::agent
