// The barrier between nodes, dissemination algorithm: in round r of a barrier each node tells the
// one 2^r places further in the ring of nodes that it and the 2^r - 1 before it have entered; after
// log2(nodes) rounds each knows it of all. A state machine without threads or network; moved by
// Delegate (barrier.h).
//
// A lost node makes another ring, which each node has from another moment on: a *view*, named by
// who is lost. A barrier begins anew in each view, and only rounds of one view count together. That
// all have entered is true in every view, so who knows it of the barrier that others may still be
// in says so (`over`) when its view changes, and who hears it goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "record.h"

namespace epfabric::agent {

class Dissemination {
 public:
  Dissemination(uint32_t node, uint32_t nodes);

  struct Message {
    uint32_t node = 0;  // to whom
    uint64_t number = 0;
    Round round;
  };

  // This node's ranks have met.
  void enter() { entered_ = true; }
  // What is to be sent next, or nullptr; sent() when it is.
  const Message* due();
  void sent();
  // All nodes have entered, and whom this one has to tell is told.
  bool complete() const {
    return entered_ && owed_ == 0 && sent_ == rounds_ && (over_ || received_ == all());
  }
  // From `node`, which is not this one; why it is unacceptable, or nullptr.
  const char* on_round(uint32_t node, uint64_t number, const Round& round);
  // No rank of that node counts any more.
  void lose(uint32_t node);
  // Begins the next barrier. `slow`: the one that ends was slow here.
  void next(bool slow);
  // Some node found the barrier before this one slow; known of all once this one is complete.
  bool slow_before() const { return slow_; }

 private:
  struct Early {
    uint32_t node;
    uint64_t number;
    Round round;
  };

  uint32_t all() const { return (1u << rounds_) - 1; }
  void make_ring();
  const char* take(uint32_t node, const Round& round);
  void adopt_early();

  const uint32_t node_;
  std::vector<bool> gone_;      // by node
  std::vector<uint32_t> ring_;  // nodes that are not
  uint32_t place_ = 0;          // of this node in it
  uint32_t rounds_ = 0;         // 0 also where this node is gone
  uint64_t view_ = 0;
  uint64_t number_ = 0;
  bool entered_ = false;
  bool over_ = false;     // somebody said so
  bool changed_ = false;  // the view, during this barrier
  bool slow_ = false;
  uint32_t received_ = 0;  // rounds, as bits
  uint32_t sent_ = 0;      // rounds
  uint32_t owed_ = 0;  // rounds of the barrier before that have to be told in this view, as bits
  Message message_;
  std::vector<Early> early_;  // of the next barrier, or of views that this node does not have
};

}  // namespace epfabric::agent
