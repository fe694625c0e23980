// Networks of one process side by side, each the line of a striped endpoint; for striped_test.cc
// and striped_mend_test.cc.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "stripes.h"

namespace epfabric::test {

template <class Network>
struct Lines {
  std::deque<Network> networks;
  std::vector<std::reference_wrapper<Network>> lines;
  agent::Selection selection = agent::Selection::kLeastInflight;

  void add(uint64_t seed, const decltype(Network::rules)& rules) {
    networks.emplace_back(seed, rules);
    lines.emplace_back(networks.back());
  }
  void at(uint64_t) {}
  void stop() {
    for (Network& network : networks) network.stop();
  }
  uint64_t posted() const {
    uint64_t out = 0;
    for (const Network& network : networks) out += network.posted();
    return out;
  }
};

}  // namespace epfabric::test
