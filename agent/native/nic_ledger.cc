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

void NicShare::take(std::span<const Wish> wishes, const std::string& whose) {
  if (wishes.empty()) return;
  NicLedger& ledger = *wishes.front().share->ledger_;
  const std::lock_guard lock(ledger.mutex_);
  NicUses more;
  for (const Wish& wish : wishes) {
    for (const std::string& device : wish.share->devices_) more[device].add(wish.of_each);
  }
  for (const auto& [device, wanted] : more) {
    const std::string error =
        shortage(device, ledger.limits_.at(device), ledger.used_[device], wanted, whose);
    if (!error.empty()) throw NativeError(error);
  }
  for (const Wish& wish : wishes) {
    if (wish.share->over_) continue;
    wish.share->taken_.add(wish.of_each);
    for (const std::string& device : wish.share->devices_) ledger.used_[device].add(wish.of_each);
  }
}

uint64_t NicShare::links_left() const {
  const std::lock_guard lock(ledger_->mutex_);
  uint64_t out = std::numeric_limits<uint64_t>::max();
  for (const std::string& device : devices_) {
    out = std::min(
        out, epfabric::agent::links_left(ledger_->limits_.at(device), ledger_->used_[device]));
  }
  return out;
}

void NicShare::give_back() {
  const std::lock_guard lock(ledger_->mutex_);
  if (over_) return;
  over_ = true;
  for (const std::string& device : devices_) ledger_->used_[device].remove(taken_);
}

}  // namespace epfabric::agent
