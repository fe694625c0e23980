// Keeps this process alive where an endpoint is closed amid a peer's write to it, as after the loss
// of a rank that others still write to. libfabric's layer ofi_rxm (1.17 and 2.1 do) follows the
// context of every error that the provider under it reports, and a peer's write with immediate data
// has none. Used by fabric.cc.
#pragma once

#include <rdma/fi_errno.h>

#include <string>

namespace epfabric::agent {

// As the error of a completion without a context: a peer's write was cut off, and none of ours.
inline constexpr int kCutOff = FI_EREMOTEIO;

// For every queue of this process that is under ofi_rxm, from now on. `provider`: as libfabric
// names it, such as tcp;ofi_rxm; without that layer there is nothing to do. Throws NativeError.
void survive_cut_writes(const std::string& provider, const std::string& address);

}  // namespace epfabric::agent
