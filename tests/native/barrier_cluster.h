// Barrier delegates of several nodes on an in-memory network, moved by hand; for barrier_test.cc
// and mask_test.cc.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "barrier.h"

namespace epfabric::test {

using namespace epfabric::agent;

struct Net {
  std::deque<ControlRecord> to_node[16];
};

struct TestNode {
  BarrierPlan plan;
  BarrierStats stats{5};
  std::unique_ptr<Meeting> meeting;
  std::unique_ptr<Delegate> delegate;
};

struct Cluster {
  Net net;
  std::vector<std::unique_ptr<TestNode>> nodes;
  std::vector<uint32_t> node_of, position_of;
  std::shared_ptr<KeepRule> keep = std::make_shared<KeepRule>();
  uint64_t now = 1000;

  Cluster(const std::vector<std::vector<uint32_t>>& ranks, uint32_t leader, uint64_t timeout_ns,
          bool dissemination = false) {
    BarrierPlan plan{3, 0, 0, leader, timeout_ns, ranks, {}, {5, 6}, keep, dissemination};
    for (uint32_t n = 0; n < ranks.size(); ++n) {
      const bool leads = std::count(ranks[n].begin(), ranks[n].end(), leader) > 0;
      if (leads) plan.leader_node = n;
      plan.delegates.push_back(leads ? leader : ranks[n].front());
      for (uint32_t i = 0; i < ranks[n].size(); ++i) {
        const uint32_t rank = ranks[n][i];
        if (node_of.size() <= rank) {
          node_of.resize(rank + 1);
          position_of.resize(rank + 1);
        }
        node_of[rank] = n;
        position_of[rank] = i;
      }
    }
    for (uint32_t n = 0; n < ranks.size(); ++n) {
      auto node = std::make_unique<TestNode>();
      node->plan = plan;
      node->plan.node = n;
      node->meeting = std::make_unique<Meeting>(static_cast<uint32_t>(ranks[n].size()));
      node->delegate = std::make_unique<Delegate>(node->plan, *node->meeting, node->stats);
      nodes.push_back(std::move(node));
    }
  }

  bool step(uint32_t n, bool busy = false, bool settled = true) {
    return nodes[n]->delegate->step(
        now,
        [&](uint32_t rank, const ControlRecord& record) {
          if (!busy) net.to_node[node_of[rank]].push_back(record);
          return !busy;
        },
        [&] { return settled; });
  }

  void deliver(uint32_t n) {
    if (net.to_node[n].empty()) return;
    const char* fault = nodes[n]->delegate->on_record(net.to_node[n].front(), now);
    INFO(std::string(fault == nullptr ? "" : fault));
    REQUIRE(fault == nullptr);
    net.to_node[n].pop_front();
  }

  // Lets everything happen until nothing moves.
  void settle() {
    for (int turns = 0; turns < 100; ++turns) {
      for (uint32_t n = 0; n < nodes.size(); ++n) {
        deliver(n);
        step(n);
      }
    }
  }

  bool kept(uint32_t n, uint64_t number) const {
    return nodes[n]->meeting->stamps(number).collected.kept;
  }

  void leave(uint32_t rank, uint64_t number) {
    Meeting& meeting = *nodes[node_of[rank]]->meeting;
    REQUIRE(meeting.released(number));
    meeting.leave(number);
  }

  void enter(uint32_t rank, uint64_t number) {
    Meeting& meeting = *nodes[node_of[rank]]->meeting;
    meeting.announce(number, position_of[rank], now);
    meeting.enter(number, position_of[rank], now);
  }
};

}  // namespace epfabric::test
