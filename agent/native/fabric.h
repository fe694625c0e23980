// RAII around libfabric: the fabric of a Core, and one endpoint (domain, queue, address table) per
// proxy. Errors at set-up throw NativeError; on the data path they are return values. Used by
// libfabric_transport.h.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "error.h"
#include "transport.h"

namespace epfabric::agent {

template <class T>
struct FidCloser {
  void operator()(T* object) const { ::fi_close(&object->fid); }
};
template <class T>
using Fid = std::unique_ptr<T, FidCloser<T>>;

// The provider, chosen once per Core and bound to the agent's address.
class Fabric {
 public:
  Fabric(const std::string& provider, const std::string& address);
  const fi_info& info() const { return *info_; }
  const std::string& address() const { return address_; }
  fid_fabric* get() const { return fabric_.get(); }

 private:
  struct InfoFreer {
    void operator()(fi_info* info) const { ::fi_freeinfo(info); }
  };
  const std::string address_;
  std::unique_ptr<fi_info, InfoFreer> info_;
  Fid<fid_fabric> fabric_;
};

// Where a remote region begins, as its owner's endpoint names it.
struct RemoteKey {
  uint64_t key = 0;
  uint64_t base = 0;
};

// Memory registered with one endpoint.
struct LocalKey {
  Fid<fid_mr> region;
  RemoteKey remote;
  void* descriptor = nullptr;
};

struct Completion {
  void* context = nullptr;  // of an own operation
  bool record = false;      // a peer's write with immediate
  uint64_t imm = 0;
  int error = 0;
  std::string detail;
};

// Used by one thread only (its proxy's).
class Endpoint {
 public:
  explicit Endpoint(const Fabric& fabric);

  LocalKey register_memory(std::byte* data, uint64_t bytes);
  std::vector<std::byte> address() const;
  fi_addr_t insert(const std::vector<std::byte>& address);
  uint64_t max_bytes() const { return max_bytes_; }
  // A descriptor that becomes readable when poll() may find something, or kNoWaitFd, or kPollFirst.
  int wait_fd();

  // From own memory to one place in the peer's.
  struct Piece {
    const void* data;
    void* descriptor;
    uint64_t bytes;
    uint64_t address;
    uint64_t key;
  };
  static constexpr size_t kMaxPieces = 2;
  // Whether one write may have two pieces.
  bool gathers() const { return gathers_; }
  // Post one write of 1-kMaxPieces pieces that completes when its source may be reused; in
  // write_through(), when it and every earlier write to that peer is visible there. 0, or
  // -FI_EAGAIN, or another error.
  ssize_t write(fi_addr_t peer, std::span<const Piece> pieces, void* context) {
    return post(peer, pieces, 0, 0, context);
  }
  ssize_t write_with_imm(fi_addr_t peer, std::span<const Piece> pieces, uint32_t imm,
                         void* context) {
    return post(peer, pieces, imm, FI_REMOTE_CQ_DATA, context);
  }
  ssize_t write_through(fi_addr_t peer, const Piece& piece, void* context) {
    return post(peer, {&piece, 1}, 0, FI_DELIVERY_COMPLETE, context);
  }
  // Reads at most `capacity` completions; 0 = the queue is empty.
  size_t poll(Completion* out, size_t capacity);

 private:
  ssize_t post(fi_addr_t peer, std::span<const Piece> pieces, uint64_t imm, uint64_t flags,
               void* context);

  fid_fabric* fabric_;
  int wait_fd_ = -1;  // the queue's
  uint64_t max_bytes_ = 0;
  bool gathers_ = false;
  bool offset_addressing_ = true;
  bool own_keys_ = true;
  size_t key_bytes_ = 8;
  Fid<fid_domain> domain_;  // closed last
  Fid<fid_av> addresses_;
  Fid<fid_cq> completions_;
  Fid<fid_ep> endpoint_;
};

}  // namespace epfabric::agent
