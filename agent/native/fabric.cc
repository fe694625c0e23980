// libfabric calls: choosing the provider, opening an endpoint, posting writes, reading completions.
#include "fabric.h"

#include <rdma/fi_errno.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cut_writes.h"

namespace epfabric::agent {
namespace {

constexpr size_t kMaxPoll = 64;
constexpr size_t kMaxNameBytes = 256;
// EFA's other fabric, which no endpoint here was tried with.
constexpr const char* kEfaDirect = "efa-direct";
// FI_OPT_EFA_EMULATED_WRITE (bool), which older headers lack.
constexpr int kEfaEmulatedWrite = -(0xefa << 16) + 2;
// One queue is one proxy's share of the NIC: its links' caps are below this.
constexpr size_t kQueueEntries = 8192;
constexpr uint64_t kFilesKept = 128;  // for sessions, peers and requests

void check(int error, const std::string& what) {
  if (error != 0) throw NativeError(what + ": " + ::fi_strerror(error < 0 ? -error : error));
}

// Keys cannot be guessed by whoever reaches the listener.
uint64_t random_key(size_t key_bytes) {
  uint64_t key = 0;
  if (::getrandom(&key, sizeof(key), 0) != sizeof(key)) throw system_error("getrandom failed");
  if (key_bytes < sizeof(key)) key &= (uint64_t{1} << (8 * key_bytes)) - 1;
  return key;
}

template <class T, class Open>
Fid<T> open(const std::string& what, Open&& call) {
  T* raw = nullptr;
  check(call(&raw), what);
  return Fid<T>(raw);
}

}  // namespace

std::string unfitness(const fi_info& info, bool ordered) {
  if (ordered && info.ep_attr->max_order_waw_size < info.ep_attr->max_msg_size) {
    return "it orders only writes up to " + std::to_string(info.ep_attr->max_order_waw_size) +
           " bytes";
  }
  if (info.domain_attr->cq_data_size < 4) return "it carries less than 4 bytes of immediate data";
  return "";
}

namespace {

const fi_info* over_device(const fi_info* found, const std::string& device) {
  for (const fi_info* at = found; at != nullptr; at = at->next) {
    const char* fabric = at->fabric_attr->name;
    if (fabric != nullptr && std::strcmp(fabric, kEfaDirect) == 0) continue;
    const bool named = at->nic != nullptr && at->nic->device_attr != nullptr;
    const char* name = named ? at->nic->device_attr->name : nullptr;
    if (device.empty() || (name != nullptr && device == name)) return at;
  }
  return nullptr;
}

}  // namespace

// 0, or what libfabric says.
int Fabric::find(const std::string& provider, const std::string& address, const std::string& device,
                 bool ordered) {
  std::unique_ptr<fi_info, InfoFreer> hints(::fi_allocinfo());
  hints->caps = FI_MSG | FI_RMA | FI_WRITE | FI_REMOTE_WRITE;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  if (ordered) {
    hints->tx_attr->msg_order = FI_ORDER_WAW | FI_ORDER_RMA_WAW;
    hints->rx_attr->msg_order = FI_ORDER_WAW | FI_ORDER_RMA_WAW;
  }
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  const bool by_address = provider != kEfa;
  fi_info* found = nullptr;
  const int error = ::fi_getinfo(kApi, by_address ? address.c_str() : nullptr, nullptr,
                                 by_address ? FI_SOURCE : 0, hints.get(), &found);
  if (error != 0) return error;
  found_.reset(found);
  info_ = over_device(found, device);
  return info_ != nullptr ? 0 : -FI_ENODEV;
}

Fabric::Fabric(const std::string& provider, const std::string& address, bool gated,
               const std::string& device)
    : place_(device.empty() ? "address " + address : device) {
  // rxm keeps 128 such buffers per connection (2 MiB by default) for messages; we send none, only
  // RMA writes. It takes this from the environment alone; what the administrator has set stands.
  ::setenv("FI_OFI_RXM_BUFFER_SIZE", "256", 0);
  int error = find(provider, address, device, true);
  if (error == -FI_ENODATA || error == -FI_ENODEV) {
    ordered_ = false;
    error = find(provider, address, device, false);
  }
  if (error != 0) {
    throw NativeError("libfabric's provider '" + provider + "' cannot be used on " + place_ + ": " +
                      ::fi_strerror(-error) +
                      " (it must offer reliable datagrams with RMA writes; see fi_info -p '" +
                      provider + "')");
  }
  if (const std::string fault = unfitness(*info_, ordered_); !fault.empty())
    throw NativeError("libfabric's provider '" + provider + "' is unfit on " + place_ + ": " +
                      fault);
  survive_cut_writes(info_->fabric_attr->prov_name, address);
  ordered_ = ordered_ && !gated;
  fabric_ = open<fid_fabric>("opening the fabric on " + place_ + " failed", [&](fid_fabric** out) {
    return ::fi_fabric(info_->fabric_attr, out, nullptr);
  });
}

// Over tcp each connection is an open file at both ends.
DeviceLimits Fabric::limits() const {
  DeviceLimits out;
  if (info_->domain_attr->mr_cnt != 0) out.registrations = info_->domain_attr->mr_cnt;
  rlimit files{};
  const std::string provider = info_->fabric_attr->prov_name;
  if (provider.rfind("tcp", 0) != 0 || ::getrlimit(RLIMIT_NOFILE, &files) != 0) return out;
  std::error_code ignored;
  uint64_t taken = kFilesKept;
  const std::filesystem::directory_iterator open("/proc/self/fd", ignored);
  taken += static_cast<uint64_t>(std::distance(begin(open), end(open)));
  out.connections = files.rlim_cur > taken ? files.rlim_cur - taken : 0;
  out.of = "of " + std::to_string(files.rlim_cur) +
           " files that the agent may have open, others are in use or kept: ulimit -n, LimitNOFILE";
  return out;
}

FabricEndpoint::FabricEndpoint(const Fabric& fabric)
    : fabric_(fabric.get()), order_(std::byte{fabric.ordered()}) {
  fi_info* info = const_cast<fi_info*>(&fabric.info());
  max_bytes_ = info->ep_attr->max_msg_size;
  const fid_nic* nic = info->nic;
  if (nic != nullptr && nic->link_attr != nullptr && nic->link_attr->speed != 0)
    line_ns_per_kib_ = uint64_t{8192} * 1'000'000'000 / nic->link_attr->speed;
  gathers_ = info->tx_attr->iov_limit >= kMaxPieces && info->tx_attr->rma_iov_limit >= kMaxPieces;
  offset_addressing_ = (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) == 0;
  own_keys_ = (info->domain_attr->mr_mode & FI_MR_PROV_KEY) == 0;
  key_bytes_ = info->domain_attr->mr_key_size;
  const bool by_ip = info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
                     info->addr_format == FI_SOCKADDR_IN6;
  family_bytes_ = by_ip ? sizeof(sa_family_t) : 0;
  const std::string where = " on " + fabric.place() + " failed";
  domain_ = open<fid_domain>("opening the domain" + where, [&](fid_domain** out) {
    return ::fi_domain(fabric.get(), info, out, nullptr);
  });
  fi_av_attr av{};
  av.type = FI_AV_TABLE;
  addresses_ = open<fid_av>("opening the address table" + where, [&](fid_av** out) {
    return ::fi_av_open(domain_.get(), &av, out, nullptr);
  });
  fi_cq_attr cq{};
  cq.format = FI_CQ_FORMAT_DATA;
  cq.size = kQueueEntries;
  cq.wait_obj = FI_WAIT_FD;  // where the provider has none, a blocked proxy is late by at most 2 ms
  fid_cq* queue = nullptr;
  if (::fi_cq_open(domain_.get(), &cq, &queue, nullptr) == 0) {
    if (::fi_control(&queue->fid, FI_GETWAIT, &wait_fd_) != 0) wait_fd_ = -1;
  } else {
    cq.wait_obj = FI_WAIT_NONE;
    check(::fi_cq_open(domain_.get(), &cq, &queue, nullptr),
          "opening the completion queue" + where);
  }
  completions_.reset(queue);
  endpoint_ = open<fid_ep>("opening an endpoint" + where, [&](fid_ep** out) {
    return ::fi_endpoint(domain_.get(), info, out, nullptr);
  });
  check(::fi_ep_bind(endpoint_.get(), &addresses_->fid, 0), "binding the address table" + where);
  check(::fi_ep_bind(endpoint_.get(), &completions_->fid, FI_TRANSMIT | FI_RECV),
        "binding the queue" + where);
  check(::fi_enable(endpoint_.get()), "enabling an endpoint" + where);
  if (std::string(info->fabric_attr->prov_name) == kEfa) require_device_writes(fabric.place());
}

// Where the device cannot write, EFA's provider would copy at the target, in the proxy's time.
void FabricEndpoint::require_device_writes(const std::string& place) const {
  bool emulated = true;
  size_t bytes = sizeof(emulated);
  const int error =
      ::fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, kEfaEmulatedWrite, &emulated, &bytes);
  if (error == 0 && !emulated) return;
  throw NativeError(place + " is unfit: " +
                    (error != 0 ? "libfabric does not say whether the device has RDMA write (use "
                                  "libfabric 1.19 or newer)"
                                : "it has no RDMA write (use an instance type whose EFA has it)"));
}

int FabricEndpoint::wait_fd() {
  fid* waited = &completions_->fid;
  if (wait_fd_ < 0) return kNoWaitFd;
  return ::fi_trywait(fabric_, &waited, 1) == 0 ? wait_fd_ : kPollFirst;
}

FabricEndpoint::LocalKey FabricEndpoint::register_memory(std::byte* data, uint64_t bytes) {
  LocalKey out;
  const uint64_t key = own_keys_ ? random_key(key_bytes_) : 0;
  out.region = open<fid_mr>("registering memory failed", [&](fid_mr** mr) {
    return ::fi_mr_reg(domain_.get(), data, bytes, FI_WRITE | FI_REMOTE_WRITE, 0, key, 0, mr,
                       nullptr);
  });
  out.descriptor = ::fi_mr_desc(out.region.get());
  out.remote = {::fi_mr_key(out.region.get()),
                offset_addressing_ ? 0 : reinterpret_cast<uint64_t>(data)};
  return out;
}

std::vector<std::byte> FabricEndpoint::address() const {
  std::vector<std::byte> out(kMaxNameBytes + 1);
  size_t bytes = kMaxNameBytes;
  check(::fi_getname(&endpoint_->fid, &out[1], &bytes), "asking for the endpoint's address failed");
  out[0] = order_;
  out.resize(bytes + 1);
  return out;
}

// The provider takes as many bytes as its own addresses have, of the family that they say.
PeerIndex FabricEndpoint::insert(const PeerAddress& peer) {
  const std::vector<std::byte> own = address();
  if (peer.address.empty() || peer.address[0] != order_) {
    throw NativeError(
        "a peer's endpoint keeps another order of writes than this agent's: give the nodes of a "
        "group the same transport");
  }
  if (peer.address.size() != own.size() ||
      !std::equal(own.begin(), own.begin() + 1 + family_bytes_, peer.address.begin())) {
    throw NativeError(
        "a peer's endpoint address is of another kind than this agent's: give the nodes of a group "
        "the same transport, and addresses of one IP version");
  }
  fi_addr_t out = FI_ADDR_UNSPEC;
  if (::fi_av_insert(addresses_.get(), peer.address.data() + 1, 1, &out, 0, nullptr) != 1) {
    throw NativeError("a peer's endpoint address cannot be used with this provider");
  }
  return out;
}

ssize_t FabricEndpoint::post(PeerIndex peer, Pieces pieces, uint64_t imm, uint64_t flags,
                             void* context) {
  std::array<iovec, kMaxPieces> local;
  std::array<fi_rma_iov, kMaxPieces> remote;
  std::array<void*, kMaxPieces> descriptors;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    local[i] = {const_cast<void*>(piece.data), piece.bytes};
    remote[i] = {piece.address, piece.bytes, piece.key};
    descriptors[i] = piece.descriptor;
  }
  fi_msg_rma message{};
  message.msg_iov = local.data();
  message.desc = descriptors.data();
  message.iov_count = pieces.size();
  message.addr = peer;
  message.rma_iov = remote.data();
  message.rma_iov_count = pieces.size();
  message.context = context;
  message.data = imm;
  return ::fi_writemsg(endpoint_.get(), &message, flags | FI_COMPLETION);
}

size_t FabricEndpoint::poll(Completion* out, size_t capacity) {
  std::array<fi_cq_data_entry, kMaxPoll> entries;
  const ssize_t got =
      ::fi_cq_read(completions_.get(), entries.data(), capacity < kMaxPoll ? capacity : kMaxPoll);
  if (got == -FI_EAGAIN) return 0;
  if (got == -FI_EAVAIL) {
    fi_cq_err_entry failed{};
    if (::fi_cq_readerr(completions_.get(), &failed, 0) != 1) return 0;
    if (failed.op_context == nullptr && failed.err == kCutOff) return 0;  // the peer's links tell
    const char* text =
        ::fi_cq_strerror(completions_.get(), failed.prov_errno, failed.err_data, nullptr, 0);
    out[0] =
        Completion{failed.op_context, false, 0, failed.err,
                   std::string(::fi_strerror(failed.err)) + (text ? std::string(", ") + text : "")};
    return 1;
  }
  if (got < 0) {
    out[0] = Completion{nullptr, false, 0, static_cast<int>(-got),
                        ::fi_strerror(static_cast<int>(-got))};
    return 1;
  }
  for (size_t i = 0; i < static_cast<size_t>(got); ++i) {
    const bool record = (entries[i].flags & FI_REMOTE_CQ_DATA) != 0;
    out[i].context = record ? nullptr : entries[i].op_context;
    out[i].record = record;
    out[i].imm = entries[i].data;
    out[i].error = 0;
  }
  return static_cast<size_t>(got);
}

}  // namespace epfabric::agent
