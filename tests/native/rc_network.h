// The network of rc_endpoint.h as a whole: what befalls many of its connections, and what it
// counts. For mend_test.cc and others.
#pragma once

#include <algorithm>

#include "rc_endpoint.h"

namespace epfabric::test {

void RcNetwork::step() {
  if (stopped_ || rules.still) return;
  for (int i = 0; i < 2; ++i) {
    RcEndpoint& endpoint = *endpoints_[random_() % endpoints_.size()];
    if (!endpoint.ends_.empty()) endpoint.step(endpoint.ends_[random_() % endpoint.ends_.size()]);
  }
}

void RcNetwork::break_all(size_t of) {
  for (RcEndpoint* endpoint : endpoints_)
    for (RcEndpoint::End& end : endpoint->ends_)
      if (of == kEach || endpoint->name_ == of || end.peer == of) endpoint->fail(end);
}

void RcNetwork::kill(size_t from, size_t to) {
  RcEndpoint& endpoint = *endpoints_[from];
  for (PeerIndex i = 0; i < endpoint.ends_.size(); ++i) {
    if (endpoint.ends_[i].peer == to) endpoint.kill(i, "it was killed");
  }
}

bool RcNetwork::all_met() const {
  for (const RcEndpoint* endpoint : endpoints_) {
    for (PeerIndex i = 0; i < endpoint->ends_.size(); ++i) {
      if (!endpoint->met(i) || endpoint->ends_[i].failed) return false;
    }
  }
  return true;
}

uint64_t RcNetwork::under_way() const {
  uint64_t out = 0;
  for (const RcEndpoint* endpoint : endpoints_) {
    for (const RcEndpoint::End& end : endpoint->ends_) out += end.flights.size();
  }
  return out;
}

uint64_t RcNetwork::done() const {
  uint64_t out = 0;
  for (const RcEndpoint* endpoint : endpoints_) {
    for (const RcEndpoint::End& end : endpoint->ends_) {
      out += static_cast<uint64_t>(
          std::count_if(end.flights.begin(), end.flights.end(),
                        [](const RcEndpoint::Flight& flight) { return flight.done; }));
    }
  }
  return out;
}

}  // namespace epfabric::test
