// Addresses of libfabric endpoints that a peer made up: the provider is given none that it would
// read beyond. Not under TSan, which cannot see into libfabric.
#if !defined(__SANITIZE_THREAD__)

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "fabric.h"

using namespace epfabric::agent;

TEST_CASE("an endpoint's address that is cut, too long or of another family is refused") {
  const Fabric fabric("tcp;ofi_rxm", "127.0.0.1");
  FabricEndpoint endpoint(fabric);
  const std::vector<std::byte> good = FabricEndpoint(fabric).address();
  const auto insert = [&endpoint](const std::vector<std::byte>& address) {
    return endpoint.insert({address, 0, 0});
  };
  CHECK_NOTHROW(insert(good));
  for (size_t bytes = 0; bytes <= good.size() + 1; ++bytes) {
    if (bytes == good.size()) continue;
    // A block of its own, so that ASan sees what is read behind it.
    std::vector<std::byte> other(good.begin(), good.begin() + std::min(bytes, good.size()));
    other.resize(bytes);
    other.shrink_to_fit();
    CHECK_THROWS_AS(insert(other), NativeError);
  }
  std::vector<std::byte> longer_family = good;
  longer_family[1] = std::byte{AF_INET6};  // whose addresses have more bytes
  CHECK_THROWS_AS(insert(longer_family), NativeError);
}

#endif
