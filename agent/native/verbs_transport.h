// The remote transports over verbs: on one port, or striped over several. Instantiated in
// remote_transport.cc.
#pragma once

#include "remote_transport.h"
#include "striped_endpoint.h"
#include "verbs_endpoint.h"

namespace epfabric::agent {

using VerbsTransport = RemoteTransport<VerbsEndpoint>;
extern template class RemoteTransport<VerbsEndpoint>;

// What a striped one is made from.
struct VerbsLines {
  std::vector<VerbsPort> lines;
  Selection selection;
};
using StripedVerbsEndpoint = StripedEndpoint<VerbsEndpoint>;
using StripedVerbsTransport = RemoteTransport<StripedVerbsEndpoint>;
extern template class RemoteTransport<StripedVerbsEndpoint>;

}  // namespace epfabric::agent
