// Mapping and checking of a session's two memfds; called by module.cc when a session begins.
#include "segments.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace epfabric::host {
namespace {

std::byte* map_segment(int fd, uint64_t bytes, int protection, const char* what) {
  struct stat status{};
  if (fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category(), what);
  if (status.st_size < 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(status.st_size) +
                                " bytes where the layout needs " + std::to_string(bytes) +
                                ": agent and library differ; use one version of both");
  }
  void* at = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) throw std::system_error(errno, std::generic_category(), what);
  if (madvise(at, bytes, MADV_DONTFORK) != 0) {
    const int error = errno;
    munmap(at, bytes);
    throw std::system_error(error, std::generic_category(), what);
  }
  return static_cast<std::byte*>(at);
}

void check_header(uint64_t magic, uint64_t expected, uint32_t abi, const char* what) {
  if (magic != expected || abi != kAbiVersion) {
    throw std::invalid_argument(std::string(what) + " is not a segment of ABI " +
                                std::to_string(kAbiVersion) +
                                ": agent and library differ; use one version of both");
  }
}

}  // namespace

Segments::Segments(int pod_fd, int agent_fd, const Geometry& geometry) : geometry_(geometry) {
  if (!layout_valid(geometry.rings, geometry.depth, geometry.signals, geometry.world)) {
    throw std::invalid_argument("the session's geometry is outside the limits of layout.h");
  }
  layout_ = layout_of(geometry.rings, geometry.depth, geometry.signals, geometry.world);
  try {
    pod_ = map_segment(pod_fd, layout_.pod_bytes, PROT_READ | PROT_WRITE, "the pod segment");
    agent_ = map_segment(agent_fd, layout_.agent_bytes, PROT_READ, "the agent segment");
    const auto* pod = reinterpret_cast<const PodHeader*>(pod_);
    const auto* agent = reinterpret_cast<const AgentHeader*>(agent_);
    check_header(pod->magic, kPodMagic, pod->abi, "the pod segment");
    check_header(agent->magic, kAgentMagic, agent->abi, "the agent segment");
  } catch (...) {
    unmap();
    throw;
  }
}

Segments::~Segments() { unmap(); }

void Segments::unmap() {
  if (pod_ != nullptr) munmap(pod_, layout_.pod_bytes);
  if (agent_ != nullptr) munmap(const_cast<std::byte*>(agent_), layout_.agent_bytes);
  detach();
}

void Segments::detach() {
  pod_ = nullptr;
  agent_ = nullptr;
}

Slot* Segments::slots(uint32_t ring) const {
  return reinterpret_cast<Slot*>(pod_ + layout_.slots) + uint64_t{ring} * geometry_.depth;
}

const RingCounters* Segments::counters(uint32_t ring) const {
  return reinterpret_cast<const RingCounters*>(agent_ + layout_.counters) + ring;
}

const AtomicResult* Segments::results(uint32_t ring) const {
  return reinterpret_cast<const AtomicResult*>(agent_ + layout_.results) +
         uint64_t{ring} * geometry_.depth;
}

const uint64_t* Segments::signal(uint32_t rank, uint32_t ring, uint32_t index) const {
  const uint64_t word = (uint64_t{rank} * geometry_.rings + ring) * geometry_.signals + index;
  return reinterpret_cast<const uint64_t*>(agent_ + layout_.signals) + word;
}

AbortWords Segments::aborts() const {
  return AbortWords{&reinterpret_cast<const PodHeader*>(pod_)->abort,
                    &reinterpret_cast<const AgentHeader*>(agent_)->abort};
}

uint64_t Segments::heartbeat() const {
  return platform::load_relaxed(&reinterpret_cast<const AgentHeader*>(agent_)->heartbeat);
}

bool Segments::masked(uint32_t rank) const {
  const auto* words = reinterpret_cast<const uint64_t*>(agent_ + layout_.mask);
  // Partner: the agent's store, after which commands to the rank complete without effect.
  return (platform::load_acquire(words + rank / 64) >> (rank % 64) & 1) != 0;
}

void Segments::set_pod_abort() {
  // Partner: AbortWords::set() in every wait of this pod, and the agent's look at the pod's word.
  platform::store_release(&reinterpret_cast<PodHeader*>(pod_)->abort, 1);
}

}  // namespace epfabric::host
