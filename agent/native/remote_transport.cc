// The remote transports that there are.
#include "fabric_transport.h"
#include "remote_post.h"

namespace epfabric::agent {

template class RemoteTransport<FabricEndpoint>;
template RemoteTransport<FabricEndpoint>::RemoteTransport(const Fabric&, uint32_t, const Shape&,
                                                          uint32_t, const Limits&, ProxyCount&);
static_assert(Transport<FabricTransport>);

}  // namespace epfabric::agent
