// The two segments of a session, mapped into the pod; owned by module.cc's objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "epfabric/fifo.h"
#include "epfabric/layout.h"

namespace epfabric::host {

struct Geometry {
  uint32_t rings;
  uint32_t depth;
  uint32_t signals;
  uint32_t world;
};

// Maps both memfds: the pod's for writing, the agent's for reading. Neither is inherited by forked
// children (MADV_DONTFORK), which therefore must call detach() before they touch or free it.
class Segments {
 public:
  // Throws std::invalid_argument or std::system_error, with a sentence.
  Segments(int pod_fd, int agent_fd, const Geometry& geometry);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  const Geometry& geometry() const { return geometry_; }
  const Layout& layout() const { return layout_; }
  bool attached() const { return pod_ != nullptr; }
  uintptr_t pod() const { return reinterpret_cast<uintptr_t>(pod_); }
  uintptr_t agent() const { return reinterpret_cast<uintptr_t>(agent_); }

  Slot* slots(uint32_t ring) const;
  const RingCounters* counters(uint32_t ring) const;
  const AtomicResult* results(uint32_t ring) const;
  const uint64_t* signal(uint32_t rank, uint32_t ring, uint32_t index) const;
  AbortWords aborts() const;
  uint64_t heartbeat() const;
  // Whether the agent told that the rank is lost. What came from it before is visible.
  bool masked(uint32_t rank) const;
  void set_pod_abort();

  // Forgets the mappings without unmapping them: for a forked child, where they do not exist.
  void detach();

 private:
  void unmap();

  Geometry geometry_;
  Layout layout_;
  std::byte* pod_ = nullptr;
  const std::byte* agent_ = nullptr;
};

}  // namespace epfabric::host
