// Makes, pre-faults and seals a session's two memfds. Called when a session opens.
#include "segment.h"

#include <fcntl.h>

#include <new>

namespace epfabric::agent {
namespace {

FileDescriptor make_memfd(const char* name, uint64_t bytes) {
  FileDescriptor fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) throw system_error("memfd_create failed");
  // Allocates the pages too, so that the agent is charged now and nobody faults later.
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw system_error("sizing a memfd failed");
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    throw system_error("allocating " + std::to_string(bytes) + " bytes for a session failed",
                       error);
  }
  return fd;
}

void seal(const FileDescriptor& fd, int seals) {
  if (::fcntl(fd.get(), F_ADD_SEALS, seals) != 0) throw system_error("sealing a memfd failed");
}

}  // namespace

Segments::Segments(const Shape& shape) : shape_(shape) {
  if (!layout_valid(shape.rings, shape.depth, shape.signals, shape.world)) {
    throw NativeError(
        "session of " + std::to_string(shape.rings) + " rings, depth " +
        std::to_string(shape.depth) + ", " + std::to_string(shape.signals) + " signals, world " +
        std::to_string(shape.world) +
        " is out of range: 1-64 rings, depth a power of two 16-65536, 1-2048 signals, "
        "1-4096 ranks");
  }
  if (shape.rank >= shape.world) {
    throw NativeError("rank " + std::to_string(shape.rank) + " is not below the world size " +
                      std::to_string(shape.world));
  }
  layout_ = layout_of(shape.rings, shape.depth, shape.signals, shape.world);
  pod_fd_ = make_memfd("epfabric-pod", layout_.pod_bytes);
  agent_fd_ = make_memfd("epfabric-agent", layout_.agent_bytes);
  pod_ = Mapping(pod_fd_.get(), layout_.pod_bytes, "a pod segment");
  agent_ = Mapping(agent_fd_.get(), layout_.agent_bytes, "an agent segment");

  new (pod_.data()) PodHeader{kPodMagic, kAbiVersion, shape.rings, shape.depth, shape.signals, 0};
  new (agent_.data()) AgentHeader{kAgentMagic, kAbiVersion, shape.rings, shape.depth, shape.signals,
                                  shape.world, shape.rank,  0,           1,           0};
  constexpr int kFixed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  seal(pod_fd_, kFixed);
  seal(agent_fd_, kFixed | F_SEAL_FUTURE_WRITE);
}

void Segments::close() {
  pod_.reset();
  agent_.reset();
  pod_fd_.reset();
  agent_fd_.reset();
}

}  // namespace epfabric::agent
