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

void NicShare::add(NicUses& to, const NicUse& of_each) const {
  for (const std::string& device : devices_) to[device].add(of_each);
}

void NicShare::take(std::span<const Wish> wishes, const std::string& whose) {
  if (wishes.empty()) return;
  NicLedger& ledger = *wishes.front().share->ledger_;
  const std::lock_guard lock(ledger.mutex_);
  NicUses more;
  for (const Wish& wish : wishes) wish.share->add(more, wish.of_each);
  for (const auto& [device, wanted] : more) {
    const std::string error =
        shortage(device, ledger.limits_.at(device), ledger.used_[device], wanted, whose);
    if (!error.empty()) throw NativeError(error);
  }
  for (const Wish& wish : wishes) {
    if (wish.share->over_) continue;
    wish.share->taken_.add(wish.of_each);
    wish.share->add(ledger.used_, wish.of_each);
    NicUse also = wish.of_each;
    also.queue_pairs = 0;  // links have none there
    for (auto& [device, use] : wish.share->spare_) {
      use.add(also);
      ledger.used_[device].add(also);
    }
  }
}

void NicShare::take_spare(const std::string& device, const NicUse& use) {
  const std::lock_guard lock(ledger_->mutex_);
  NicUse& used = ledger_->used_[device];
  if (over_ || !shortage(device, ledger_->limits_.at(device), used, use, "").empty()) return;
  NicUse now = use;
  now.registrations = endpoint_use(0).registrations;  // regions' are counted when they come
  used.add(now);
  spare_[device].add(now);
}

bool NicShare::has_spare() const {
  const std::lock_guard lock(ledger_->mutex_);
  return !spare_.empty();
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
  for (const auto& [device, use] : spare_) ledger_->used_[device].remove(use);
}

}  // namespace epfabric::agent
