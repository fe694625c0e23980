// Who has what of an agent's RDMA devices. Room is looked for and taken in one step, and each
// proxy's share is given back when its thread has let its endpoints go, however it came to that.
// Any thread may call. Made by Core; proxies hold shares.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nic_room.h"

namespace epfabric::agent {

using NicLimits = std::map<std::string, ibv_device_attr>;  // by device

class NicLedger {
 public:
  // `used` is there for as long as the agent's core is.
  NicLedger(NicLimits limits, NicUses used) : limits_(std::move(limits)), used_(std::move(used)) {}
  NicLedger(const NicLedger&) = delete;

  const NicLimits& limits() const { return limits_; }
  NicUses uses() const;

 private:
  friend class NicShare;
  const NicLimits limits_;
  mutable std::mutex mutex_;  // this one and every share's
  NicUses used_;
};

// One proxy's, of each device that its links use, and of the one that stands by.
class NicShare {
 public:
  NicShare(std::shared_ptr<NicLedger> ledger, std::vector<std::string> devices)
      : ledger_(std::move(ledger)), devices_(std::move(devices)) {}
  ~NicShare() { give_back(); }
  NicShare(const NicShare&) = delete;

  struct Wish {
    NicShare* share;
    NicUse of_each;  // of its devices
  };
  // All or, where one device lacks room, nothing; then it throws NativeError with the numbers and
  // whose they are. All shares are of one ledger.
  static void take(std::span<const Wish> wishes, const std::string& whose);
  // Takes an endpoint on this device if all fits that it will ever need; else does without. What is
  // taken later counts there too, but for links' queue pairs.
  void take_spare(const std::string& device, const NicUse& use);
  bool has_spare() const;
  // Of links, before a device is full.
  uint64_t links_left() const;
  // What it stands for is gone. A take() that comes after this leaves nothing taken.
  void give_back();

 private:
  const std::shared_ptr<NicLedger> ledger_;
  void add(NicUses& to, const NicUse& of_each) const;

  const std::vector<std::string> devices_;
  NicUse taken_;  // as in Wish
  NicUses spare_;
  bool over_ = false;
};
using NicShares = std::vector<std::shared_ptr<NicShare>>;  // by proxy

}  // namespace epfabric::agent
