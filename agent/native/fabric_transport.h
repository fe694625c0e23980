// The remote transports over libfabric. Instantiated in remote_transport.cc.
#pragma once

#include "fabric.h"
#include "remote_transport.h"

namespace epfabric::agent {

using FabricTransport = RemoteTransport<FabricEndpoint>;
using GatedFabricTransport = RemoteTransport<GatedFabricEndpoint>;
extern template class RemoteTransport<FabricEndpoint>;
extern template class RemoteTransport<GatedFabricEndpoint>;

}  // namespace epfabric::agent
