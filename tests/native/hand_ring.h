// A ring of one session, pushed to by hand; for tests of a HandGroup.
#pragma once

#include <doctest/doctest.h>
#include <epfabric/fifo.h>

#include "session.h"

namespace epfabric::test {

// A ring of a rank, as its pod has it.
struct HandRing {
  HandRing(const agent::Session& session, uint32_t ring)
      : counters(*session.segments().counters(ring)) {
    const agent::Segments& segments = session.segments();
    producer = {const_cast<Slot*>(segments.slots(ring)), &counters.tail, 0, 0,
                segments.shape().depth};
  }
  void push(const Slot& slot) { REQUIRE(producer.try_push(&slot, 1)); }
  bool completed() const { return platform::load_acquire(&counters.completed) == producer.head; }
  const RingCounters& counters;
  Producer producer{};
};

}  // namespace epfabric::test
