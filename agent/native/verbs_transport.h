// The remote transports over verbs: on one port at a time, or striped over several. Instantiated in
// remote_transport.cc.
#pragma once

#include "remote_transport.h"
#include "standby_endpoint.h"
#include "striped_endpoint.h"
#include "verbs_endpoint.h"

namespace epfabric::agent {

// What one is made from whose links use one port at a time.
struct VerbsStandby {
  std::vector<VerbsPort> lines;
  uint32_t patience = 100;  // a second, by kMeetEveryNs
};
using StandbyVerbsEndpoint = StandbyEndpoint<VerbsEndpoint>;
using VerbsTransport = RemoteTransport<StandbyVerbsEndpoint>;
extern template class RemoteTransport<StandbyVerbsEndpoint>;

// What a striped one is made from.
struct VerbsLines {
  std::vector<VerbsPort> lines;
  Selection selection;
};
using StripedVerbsEndpoint = StripedEndpoint<VerbsEndpoint>;
using StripedVerbsTransport = RemoteTransport<StripedVerbsEndpoint>;
extern template class RemoteTransport<StripedVerbsEndpoint>;

}  // namespace epfabric::agent
