// What a group of cores says of its links that were made anew, for tests that take rails away.
#pragma once

#include "cores.h"

namespace epfabric::agent {

struct Mended {
  uint64_t ends = 0, operations = 0, moved = 0;
};

inline Mended mended_by(const CoreGroup& group) {
  Mended out;
  for (const RankPod& pod : group.pods) {
    for (const auto& proxy : pod.session->proxies()) {
      out.ends += proxy->count().mended.get();
      out.operations += proxy->count().replayed.get();
      out.moved += proxy->count().moved.get();
    }
  }
  return out;
}

}  // namespace epfabric::agent
