// The scripted connection of mend_script.h with NICs that apply ATOMICs. For nic_explorer_test.cc.
#pragma once

#include "mend_script.h"

namespace epfabric::test {

class NicEnd : public MendEnd {
 public:
  using MendEnd::MendEnd;

  // Beside the other end there is the way through its NIC to its own words, which nobody uses here.
  PeerIndex insert(const PeerAddress& peer) {
    return peer.address == address() ? kSelf : MendEnd::insert(peer);
  }
  bool met(PeerIndex peer) const { return peer == kSelf || MendEnd::met(peer); }
  const std::string& fault(PeerIndex peer) const {
    return peer == kSelf ? none_ : MendEnd::fault(peer);
  }
  ssize_t write_through(PeerIndex peer, const Piece& piece, void* context) {
    if (peer != kSelf) return MendEnd::write_through(peer, piece, context);
    queue_.push_back({{context, false, 0, 0, ""}});
    return 0;
  }

  agent::AtomicsAbility ability() const { return agent::AtomicsAbility::kAble; }
  ssize_t fetch_add(PeerIndex, const Piece& word, uint64_t operand, void* context) {
    return post({&word, 1}, nullptr, context, &operand);
  }
  ssize_t compare_swap(PeerIndex, const Piece&, uint64_t, uint64_t, void*) { return -ENOTSUP; }

 private:
  static constexpr PeerIndex kSelf = 1;
  const std::string none_;
};
static_assert(agent::HardwareAtomics<NicEnd> && agent::Mending<NicEnd>);

}  // namespace epfabric::test
