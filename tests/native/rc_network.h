// The network of rc_endpoint.h as a whole: what moves, what befalls many of its connections, and
// what it counts. For mend_test.cc and others.
#pragma once

#include <algorithm>

#include "rc_endpoint.h"

namespace epfabric::test {

// One step of one connection.
void RcEndpoint::step(End& end) {
  End* other = network_.rules.dead ? nullptr : other_end(end);
  if (!end.incoming.empty() && network_.one_in(2)) {
    auto& [stores, flight] = end.incoming.front();
    if (flight.change && !flight.done) return change(flight);
    receive(end, stores, flight);
    end.incoming.pop_front();
    network_.late_ += 1;
    return;
  }
  if (!end.alive || end.failed || failed_ || !end.fault.empty()) return;
  const bool idle = end.flights.empty();
  if ((!idle || network_.one_in(16)) && network_.one_in(network_.rules.break_one_in))
    return fail(end);
  if (idle) return;
  const bool answers = other != nullptr && !network_.endpoints_[end.peer]->failed_ &&
                       other->alive && !other->failed && other->fault.empty() &&
                       other->link.seen == end.link.generation && other->incoming.empty();
  if (!answers) {
    if (network_.one_in(network_.rules.give_up_one_in)) fail(end);
    return;
  }
  if (network_.one_in(2)) {
    for (Flight& flight : end.flights) {
      if (flight.done) continue;
      if (flight.bytes() > network_.rules.longest) {
        if (network_.one_in(network_.rules.give_up_one_in)) fail(end);
        return;
      }
      RcEndpoint& to = *network_.endpoints_[end.peer];
      if (flight.change) return to.change(flight);
      to.receive(*other, to.stores_of(flight), flight);
      flight.done = true;
      return;
    }
  }
  const Flight& first = end.flights.front();
  if (!first.done || network_.rules.unanswered) return;
  if (first.change) std::memcpy(const_cast<void*>(first.pieces[0].data), &first.change->old, 8);
  completions_.push_back({{first.context, false, 0, 0, ""}, index_of(end)});
  end.flights.pop_front();
}

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

void RcNetwork::fail_device(size_t of, Failing how) {
  RcEndpoint& endpoint = *endpoints_[of];
  endpoint.failed_ = true;
  endpoint.readable_ = how != Failing::kUnreadable;
  if (how == Failing::kTold) endpoint.lose_device();
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
