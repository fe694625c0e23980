// RAII around libfabric: the fabric of a Core, and one endpoint (domain, queue, address table) per
// proxy. Errors at set-up throw NativeError; on the data path they are return values. Used by
// remote_transport.h.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "endpoint.h"
#include "error.h"

namespace epfabric::agent {

// Of libfabric's interface.
inline constexpr uint32_t kApi = FI_VERSION(1, 17);

template <class T>
struct FidCloser {
  void operator()(T* object) const { ::fi_close(&object->fid); }
};
template <class T>
using Fid = std::unique_ptr<T, FidCloser<T>>;

// Why a provider cannot be used, or "". Pure. `ordered`: it was asked to keep the order of writes.
std::string unfitness(const fi_info& info, bool ordered);

// libfabric's provider for Elastic Fabric Adapters.
inline constexpr const char* kEfa = "efa";

// The provider, chosen once per Core and bound to the agent's address; or, for EFA, which has no IP
// addresses, to one of its devices.
class Fabric {
 public:
  // `gated`: as if the provider kept no order. `device`: by its RDMA name; empty: the first.
  Fabric(const std::string& provider, const std::string& address, bool gated = false,
         const std::string& device = "");
  // Whether writes to one peer arrive in order: else GatedFabricEndpoint is to be used.
  bool ordered() const { return ordered_; }
  // What is left for connections of this process's endpoints, as far as the provider has a limit.
  DeviceLimits limits() const;
  const fi_info& info() const { return *info_; }
  // As errors name where it is: "address 10.0.0.1", or the device.
  const std::string& place() const { return place_; }
  fid_fabric* get() const { return fabric_.get(); }

 private:
  struct InfoFreer {
    void operator()(fi_info* info) const { ::fi_freeinfo(info); }
  };
  int find(const std::string& provider, const std::string& address, const std::string& device,
           bool ordered);

  const std::string place_;
  std::unique_ptr<fi_info, InfoFreer> found_;  // all that there are
  const fi_info* info_ = nullptr;              // the one of these that is used
  bool ordered_ = true;
  Fid<fid_fabric> fabric_;
};

// Used by one thread only (its proxy's).
class FabricEndpoint {
 public:
  // Memory registered with this endpoint.
  struct LocalKey {
    Fid<fid_mr> region;
    RemoteKey remote;
    void* descriptor = nullptr;
  };

  explicit FabricEndpoint(const Fabric& fabric);

  LocalKey register_memory(std::byte* data, uint64_t bytes);
  std::vector<std::byte> address() const;
  PeerIndex insert(const PeerAddress& peer);
  void meet() {}
  bool met(PeerIndex) const { return true; }  // the provider connects at the first write
  void attend() {}
  const std::string& fault(PeerIndex) const { return no_fault_; }  // the completions tell
  uint64_t max_bytes() const { return max_bytes_; }
  int wait_fd();

  bool gathers() const { return gathers_; }
  ssize_t write(PeerIndex peer, Pieces pieces, void* context) {
    return post(peer, pieces, 0, 0, context);
  }
  ssize_t write_with_imm(PeerIndex peer, Pieces pieces, uint32_t imm, void* context) {
    return post(peer, pieces, imm, FI_REMOTE_CQ_DATA, context);
  }
  ssize_t write_through(PeerIndex peer, const Piece& piece, void* context) {
    return post(peer, {&piece, 1}, 0, FI_DELIVERY_COMPLETE, context);
  }
  static std::string text_of(int error) { return ::fi_strerror(error); }
  size_t poll(Completion* out, size_t capacity);

 protected:
  uint64_t line_ns_per_kib_ = 0;

 private:
  ssize_t post(PeerIndex peer, Pieces pieces, uint64_t imm, uint64_t flags, void* context);

  void require_device_writes(const std::string& place) const;

  const std::string no_fault_;
  fid_fabric* fabric_;
  const std::byte order_;  // part of the address: both ends must agree
  int wait_fd_ = -1;       // the queue's
  uint64_t max_bytes_ = 0;
  bool gathers_ = false;
  bool offset_addressing_ = true;
  bool own_keys_ = true;
  size_t key_bytes_ = 8;
  size_t family_bytes_ = 0;  // at the beginning of an address
  Fid<fid_domain> domain_;   // closed last
  Fid<fid_av> addresses_;
  Fid<fid_cq> completions_;
  Fid<fid_ep> endpoint_;
};

static_assert(Endpoint<FabricEndpoint> && !Unordered<FabricEndpoint>);

// Over a provider that keeps no order, as EFA's SRD, or is to be used as if.
class GatedFabricEndpoint : public FabricEndpoint {
 public:
  static constexpr bool kUnordered = true;
  using FabricEndpoint::FabricEndpoint;
  uint64_t line_ns_per_kib() const { return line_ns_per_kib_; }
};
static_assert(Unordered<GatedFabricEndpoint>);

}  // namespace epfabric::agent
