// Taking and giving back; nic_ledger.h.
#include "nic_ledger.h"

#include <algorithm>
#include <limits>

#include "error.h"

namespace epfabric::agent {

NicUses NicLedger::uses() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void NicShare::add(NicUses& to, const NicUse& of_each, const NicUse& links) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    to[devices_[i]].add(of_each);
    if (i < linked_) to[devices_[i]].add(links);
  }
}

void NicShare::take(std::span<const Wish> wishes, const std::string& whose) {
  if (wishes.empty()) return;
  NicLedger& ledger = *wishes.front().share->ledger_;
  const std::lock_guard lock(ledger.mutex_);
  NicUses more;
  for (const Wish& wish : wishes) wish.share->add(more, wish.of_each, wish.links);
  for (const auto& [device, wanted] : more) {
    const std::string error =
        shortage(device, ledger.limits_.at(device), ledger.used_[device], wanted, whose);
    if (!error.empty()) throw NativeError(error);
  }
  for (const Wish& wish : wishes) {
    if (wish.share->over_) continue;
    wish.share->taken_.add(wish.of_each);
    wish.share->links_.add(wish.links);
    wish.share->add(ledger.used_, wish.of_each, wish.links);
  }
}

uint64_t NicShare::links_left() const {
  const std::lock_guard lock(ledger_->mutex_);
  uint64_t out = std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i < std::min(linked_, devices_.size()); ++i) {
    const std::string& device = devices_[i];
    out = std::min(
        out, epfabric::agent::links_left(ledger_->limits_.at(device), ledger_->used_[device]));
  }
  return out;
}

void NicShare::give_back() {
  const std::lock_guard lock(ledger_->mutex_);
  if (over_) return;
  over_ = true;
  for (size_t i = 0; i < devices_.size(); ++i) {
    NicUse& used = ledger_->used_[devices_[i]];
    used.remove(taken_);
    if (i < linked_) used.remove(links_);
  }
}

}  // namespace epfabric::agent
