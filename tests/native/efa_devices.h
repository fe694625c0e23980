// What libfabric says of EFA devices, as far as fabric.cc asks: rdmap0, rdmap1, rdmap2 that has no
// RDMA write, and rdmap3 that cannot be opened, each also over EFA's other fabric. For
// twin_provider.cc.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

namespace efa {

constexpr size_t kNameBytes = 32;  // of an address
constexpr size_t kMaxMessage = 4096;
constexpr int kEmulatedWrite = -(0xefa << 16) + 2;  // FI_OPT_EFA_EMULATED_WRITE

inline constexpr const char* kBroken = "rdmap3";

inline bool is_named(const char* provider) {
  return provider != nullptr && std::strcmp(provider, "efa") == 0;
}

inline bool has_writes(const fi_info& info) {
  return std::strcmp(info.nic->device_attr->name, "rdmap2") != 0;
}

// One device over one of EFA's fabrics.
inline fi_info* info(const fi_info* hints, const char* device, const char* fabric) {
  static std::map<std::string, std::pair<fi_device_attr, fid_nic>> nics;  // for ever
  static fi_ops closing{};
  closing.size = sizeof(closing);
  closing.close = [](fid*) { return 0; };
  auto& [attributes, nic] = nics[device];
  attributes.name = const_cast<char*>(device);
  nic.fid.ops = &closing;
  nic.device_attr = &attributes;
  fi_info* out = ::fi_dupinfo(hints);
  out->nic = &nic;
  out->addr_format = FI_FORMAT_UNSPEC;
  out->fabric_attr->name = ::strdup(fabric);
  out->ep_attr->max_msg_size = kMaxMessage;
  out->ep_attr->max_order_waw_size = 0;
  out->tx_attr->iov_limit = out->tx_attr->rma_iov_limit = 1;
  out->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  out->domain_attr->mr_key_size = sizeof(uint32_t);
  out->domain_attr->cq_data_size = 4;
  return out;
}

inline int infos(const fi_info* hints, fi_info** out) {
  if ((hints->tx_attr->msg_order & FI_ORDER_WAW) != 0) return -FI_ENODATA;
  for (const char* device : {"rdmap0", "rdmap1", "rdmap2", kBroken}) {
    for (const char* fabric : {"efa-direct", "efa"}) {
      *out = info(hints, device, fabric);
      out = &(*out)->next;
    }
  }
  return 0;
}

}  // namespace efa
