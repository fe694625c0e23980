// Rounds and views of the dissemination barrier.
#include "dissemination.h"

#include <algorithm>
#include <bit>

#include "trace.h"

namespace epfabric::agent {
namespace {

constexpr size_t kMostEarly = 1024;  // a node sends a dozen for each barrier and view

}  // namespace

Dissemination::Dissemination(uint32_t node, uint32_t nodes) : node_(node), gone_(nodes) {
  make_ring();
}

void Dissemination::make_ring() {
  ring_.clear();
  for (uint32_t node = 0; node < gone_.size(); ++node) {
    if (node == node_) place_ = static_cast<uint32_t>(ring_.size());
    if (!gone_[node]) ring_.push_back(node);
  }
  rounds_ = gone_[node_] ? 0 : static_cast<uint32_t>(std::bit_width(ring_.size() - 1));
}

const Dissemination::Message* Dissemination::due() {
  const auto to = [this](uint32_t round) { return ring_[(place_ + (1u << round)) % ring_.size()]; };
  if (owed_ != 0) {
    const auto round = static_cast<uint32_t>(std::countr_zero(owed_));
    message_ = {to(round), number_ - 1, {static_cast<uint8_t>(round), true, false, view_}};
    return &message_;
  }
  const bool heard = over_ || (received_ & ((1u << sent_) - 1)) == (1u << sent_) - 1;
  if (!entered_ || sent_ == rounds_ || !heard) return nullptr;
  message_ = {to(sent_), number_, {static_cast<uint8_t>(sent_), over_, slow_, view_}};
  return &message_;
}

void Dissemination::sent() {
  if (owed_ != 0) {
    owed_ &= owed_ - 1;
  } else {
    sent_ += 1;
  }
}

// Numbers that cannot be are told to a node that others have lost already: what it hears then
// counts for nobody.
const char* Dissemination::on_round(uint32_t node, uint64_t number, const Round& round) {
  if (gone_[node] || number < number_ || number > number_ + 1) return nullptr;
  if (round.over) {
    if (number != number_ || !entered_) return nullptr;
    over_ = true;
    slow_ = slow_ || round.slow;
    return nullptr;
  }
  if (number == number_ && round.view == view_) return take(node, round);
  if (early_.size() == kMostEarly) return "more rounds than there can be";
  early_.push_back({node, number, round});
  return nullptr;
}

const char* Dissemination::take(uint32_t node, const Round& round) {
  if (round.round >= rounds_) return "a round that there is not";
  const size_t back = (1u << round.round) % ring_.size();
  if (ring_[(place_ + ring_.size() - back) % ring_.size()] != node) return "another node's round";
  if ((received_ >> round.round & 1) != 0) return "a round twice";
  received_ |= 1u << round.round;
  slow_ = slow_ || round.slow;
  return nullptr;
}

// A round that is none is passed over: then the barrier runs out of its time.
void Dissemination::adopt_early() {
  std::erase_if(early_, [this](const Early& early) {
    if (early.number != number_ || early.round.view != view_) return early.number < number_;
    (void)take(early.node, early.round);
    return true;
  });
}

void Dissemination::lose(uint32_t node) {
  if (gone_[node]) return;
  gone_[node] = true;
  view_ ^= detail::scatter(node + 1) & kViewBits;
  make_ring();
  received_ = sent_ = 0;
  changed_ = true;
  owed_ = number_ > 0 ? all() : 0;
  adopt_early();
}

void Dissemination::next(bool slow) {
  number_ += 1;
  owed_ = changed_ ? all() : 0;
  entered_ = over_ = changed_ = false;
  slow_ = slow;
  received_ = sent_ = 0;
  adopt_early();
}

}  // namespace epfabric::agent
