// The remote transport over libfabric. Instantiated in remote_transport.cc.
#pragma once

#include "fabric.h"
#include "remote_transport.h"

namespace epfabric::agent {

using FabricTransport = RemoteTransport<FabricEndpoint>;
extern template class RemoteTransport<FabricEndpoint>;

}  // namespace epfabric::agent
