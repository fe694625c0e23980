// A port of an RDMA device, opened: what it can do, its GID, its memory, its events. One per
// endpoint; errors throw NativeError and say what to do. Used by verbs_endpoint.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "endpoint.h"
#include "ibverbs.h"
#include "verbs_choice.h"

namespace epfabric::agent {

// Which port of which device, under which address; chosen outside.
struct VerbsPort {
  std::string device;
  uint8_t port = 1;
  std::string gid;          // an IP address, or a GID in the same notation
  uint32_t inflight = 256;  // operations per peer that queues have room for
  uint32_t inlined = 128;   // bytes at most that a WR carries itself: a record, a small payload
  bool spare = false;       // few operations go over it, if any: its queues are short
  std::optional<uint32_t> psn{};  // of each first packet, else at random; tests begin below a wrap
};

// Names of the devices that libibverbs lists, and what one of them says of itself.
std::vector<std::string> rdma_devices();
ibv_device_attr limits_of(const std::string& device);

class VerbsDevice {
 public:
  explicit VerbsDevice(const VerbsPort& port);

  // Memory of this process that peers may write to and read from.
  MemoryRegion register_memory(void* data, uint64_t bytes);
  // Memory of another device, by its dma-buf; `iova` is its address in keys.
  MemoryRegion register_dmabuf(int fd, uint64_t offset, uint64_t bytes, uint64_t iova);

  // What happened to the device since the last call and who is hit: a queue pair, or (nullptr) all.
  struct Trouble {
    ibv_qp* qp = nullptr;
    std::string text;
    bool passes = false;  // a new queue pair may work
    bool spent = false;   // none: one that failed uses up no more receives
    bool gone = false;    // the device itself, or a queue that all use, failed
  };
  std::optional<Trouble> next_trouble();
  // What the port did, good or bad, that may change how it is used; each once.
  std::optional<std::string> next_news();
  // Readable when next_trouble() or next_news() may find something.
  int events_fd() const { return context_->async_fd; }

  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  const ibv_device_attr& attributes() const { return attributes_; }
  // As one party for a word, in host order: values beyond these have the old value the other way.
  bool applies_atomics() const {
    return attributes_.atomic_cap == IBV_ATOMIC_HCA || attributes_.atomic_cap == IBV_ATOMIC_GLOB;
  }
  // To all memory that was registered, and from there.
  AtomicsAbility ability() const {
    if (!applies_atomics()) return AtomicsAbility::kUnable;
    return paged_ && !memory_.atomics_on_demand ? AtomicsAbility::kPaged : AtomicsAbility::kAble;
  }
  const ibv_port_attr& port() const { return port_; }
  const Quirk& quirk() const { return quirk_; }
  const QueueSizes& sizes() const { return sizes_; }
  uint32_t inlined() const { return wanted_.inlined; }
  std::optional<uint32_t> psn() const { return wanted_.psn; }
  uint8_t port_number() const { return wanted_.port; }
  const Gid& gid() const { return gid_; }
  uint32_t gid_index() const { return gid_index_; }
  bool ethernet() const { return port_.link_layer == IBV_LINK_LAYER_ETHERNET; }
  std::string name() const;  // for messages
  bool active() const;       // whether the port is up now
  bool removed() const;      // the kernel has ended it, and all that was made of it before

 private:
  std::optional<uint32_t> index_of_gid() const;
  std::optional<Trouble> trouble_of(const ibv_async_event& event) const;
  int access(bool paged = false) const;

  const VerbsPort wanted_;
  DeviceContext context_;
  ibv_device_attr attributes_{};
  ibv_port_attr port_{};
  Quirk quirk_{};
  QueueSizes sizes_{};
  MemoryAbility memory_;
  bool paged_ = false;  // some of it is paged on demand
  Gid gid_{};
  uint32_t gid_index_ = 0;
  ProtectionDomain domain_;
};

}  // namespace epfabric::agent
