// libibverbs, found when it is first needed: a machine without it is one without RDMA NICs. The
// data path's calls are the inline functions of verbs.h, which go through the device's context.
// Used by the verbs_*.h.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "error.h"

namespace epfabric::agent {

struct Ibverbs {
  ibv_device** (*get_device_list)(int*);
  void (*free_device_list)(ibv_device**);
  const char* (*get_device_name)(ibv_device*);
  ibv_context* (*open_device)(ibv_device*);
  int (*close_device)(ibv_context*);
  int (*query_device)(ibv_context*, ibv_device_attr*);
  ssize_t (*query_gid_table)(ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t);
  ibv_pd* (*alloc_pd)(ibv_context*);
  int (*dealloc_pd)(ibv_pd*);
  ibv_mr* (*register_mr)(ibv_pd*, void*, size_t, int);
  ibv_mr* (*register_dmabuf_mr)(ibv_pd*, uint64_t, size_t, uint64_t, int, int);  // or nullptr
  int (*deregister_mr)(ibv_mr*);
  ibv_comp_channel* (*create_channel)(ibv_context*);
  int (*destroy_channel)(ibv_comp_channel*);
  ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int);
  int (*destroy_cq)(ibv_cq*);
  int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**);
  void (*ack_cq_events)(ibv_cq*, unsigned);
  ibv_srq* (*create_srq)(ibv_pd*, ibv_srq_init_attr*);
  int (*destroy_srq)(ibv_srq*);
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*);
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int);
  int (*destroy_qp)(ibv_qp*);
  ibv_ah* (*create_ah)(ibv_pd*, ibv_ah_attr*);
  int (*destroy_ah)(ibv_ah*);
  int (*get_async_event)(ibv_context*, ibv_async_event*);
  void (*ack_async_event)(ibv_async_event*);
  const char* (*status_text)(ibv_wc_status);
};

// Throws NativeError where the library cannot be loaded. It is never unloaded.
const Ibverbs& ibverbs();

template <class T, int (*Ibverbs::*Destroy)(T*)>
struct VerbsCloser {
  void operator()(T* object) const { (ibverbs().*Destroy)(object); }
};
template <class T, int (*Ibverbs::*Destroy)(T*)>
using Verbs = std::unique_ptr<T, VerbsCloser<T, Destroy>>;

using DeviceContext = Verbs<ibv_context, &Ibverbs::close_device>;
using ProtectionDomain = Verbs<ibv_pd, &Ibverbs::dealloc_pd>;
using MemoryRegion = Verbs<ibv_mr, &Ibverbs::deregister_mr>;
using CompletionChannel = Verbs<ibv_comp_channel, &Ibverbs::destroy_channel>;
using CompletionQueue = Verbs<ibv_cq, &Ibverbs::destroy_cq>;
using SharedReceiveQueue = Verbs<ibv_srq, &Ibverbs::destroy_srq>;
using QueuePair = Verbs<ibv_qp, &Ibverbs::destroy_qp>;
using AddressHandle = Verbs<ibv_ah, &Ibverbs::destroy_ah>;

}  // namespace epfabric::agent
