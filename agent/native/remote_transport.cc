// The remote transports that there are.
#include "fabric_transport.h"
#include "remote_post.h"
#include "verbs_transport.h"

namespace epfabric::agent {

template class RemoteTransport<FabricEndpoint>;
template RemoteTransport<FabricEndpoint>::RemoteTransport(const Fabric&, uint32_t, const Shape&,
                                                          uint32_t, const Limits&, ProxyCount&);
template class RemoteTransport<GatedFabricEndpoint>;
template RemoteTransport<GatedFabricEndpoint>::RemoteTransport(const Fabric&, uint32_t,
                                                               const Shape&, uint32_t,
                                                               const Limits&, ProxyCount&);
static_assert(Transport<FabricTransport> && Transport<GatedFabricTransport>);

static_assert(Movable<StandbyVerbsEndpoint> && HardwareAtomics<StandbyVerbsEndpoint> &&
              !Unordered<StandbyVerbsEndpoint> && !Paced<StandbyVerbsEndpoint>);
template class RemoteTransport<StandbyVerbsEndpoint>;
template RemoteTransport<StandbyVerbsEndpoint>::RemoteTransport(const VerbsStandby&, uint32_t,
                                                                const Shape&, uint32_t,
                                                                const Limits&, ProxyCount&);
static_assert(Transport<VerbsTransport>);

static_assert(Unordered<StripedVerbsEndpoint> && Mending<StripedVerbsEndpoint> &&
              !Paced<StripedVerbsEndpoint>);
template class RemoteTransport<StripedVerbsEndpoint>;
template RemoteTransport<StripedVerbsEndpoint>::RemoteTransport(const VerbsLines&, uint32_t,
                                                                const Shape&, uint32_t,
                                                                const Limits&, ProxyCount&);
static_assert(Transport<StripedVerbsTransport>);

}  // namespace epfabric::agent
