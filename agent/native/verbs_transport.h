// The remote transport over verbs. Instantiated in remote_transport.cc.
#pragma once

#include "remote_transport.h"
#include "verbs_endpoint.h"

namespace epfabric::agent {

using VerbsTransport = RemoteTransport<VerbsEndpoint>;
extern template class RemoteTransport<VerbsEndpoint>;

}  // namespace epfabric::agent
