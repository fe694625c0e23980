// What a striped endpoint does when a line's connection breaks. All lines of that peer are severed
// and made anew; each end tells how many immediates came by each, so that the other knows of every
// write that failed whether it is there. It goes on over the first line that is met, and others
// join. Included by striped_endpoint.h; docs/ordering.md argues why it is right.
#pragma once

#include <algorithm>

#include "striped_endpoint.h"

namespace epfabric::agent {
namespace detail {

inline constexpr uint32_t kJoinLooks = 4;  // calls of attend() until lines that are out are tried

// Adds a reason to those that there are.
inline void add_reason(std::string& out, const std::string& why) {
  if (why.empty() || out.find(why) != std::string::npos) return;
  out += (out.empty() ? "" : "; ") + why;
}

}  // namespace detail

template <Endpoint E>
bool StripedEndpoint<E>::next_broken(PeerIndex& out)
  requires Mending<E>
{
  for (size_t i = 0; i < lines_.size(); ++i) {
    PeerIndex at = 0;
    while (lines_[i].next_broken(at)) {
      broken_.push_back(owners_[i][at]);
      detail::add_reason(peers_[owners_[i][at]].broken, lines_[i].broken_by(at));
    }
  }
  if (broken_.empty()) return false;
  out = broken_.back();
  broken_.pop_back();
  return true;
}

template <Endpoint E>
bool StripedEndpoint<E>::sever(PeerIndex index)
  requires Mending<E>
{
  const Peer& peer = peers_[index];
  bool out = true;
  for (size_t i = 0; i < peer.at.size(); ++i) out = lines_[i].sever(peer.at[i]) && out;
  return out;
}

template <Endpoint E>
void StripedEndpoint<E>::remake(PeerIndex index, const Told&)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  std::erase(broken_, index);
  peer.own.era += 1;
  peer.shut = false;
  peer.stripes = Stripes(static_cast<uint32_t>(peer.at.size()), selection_, 0);
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (!faulty(peer, i)) lines_[i].remake(peer.at[i], peer.own);
  }
}

// Lines that were met since are used from now on. With the first of an era it is known what of all
// that was sent before has arrived.
template <Endpoint E>
void StripedEndpoint<E>::join(Peer& peer)
  requires Mending<E>
{
  if (peer.own.era == 0 || peer.stripes.up() == (1u << peer.at.size()) - 1) return;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const PeerIndex at = peer.at[i];
    const bool up = (peer.stripes.up() >> i & 1) != 0;
    if (up || !lines_[i].met(at) || faulty(peer, i)) continue;
    if (peer.stripes.up() == 0) peer.sent = lines_[i].told(at).taken;
    peer.stripes.add(i);
    peer.broken.clear();
  }
  if (!peer.broken.empty()) return;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if ((peer.stripes.up() >> i & 1) == 0)
      detail::add_reason(peer.broken, lines_[i].broken_by(peer.at[i]));
  }
}

// What is left of the peer was severed at both ends, so that the counts are final.
template <Endpoint E>
bool StripedEndpoint<E>::arrived(PeerIndex index, void* context)
  requires Mending<E>
{
  auto* place = static_cast<Place*>(context);
  const Place was = *place;
  *place = {};
  return was.line < kMaxLines &&
         static_cast<int32_t>(was.number - peers_[index].sent[was.line]) < 0;
}

// A line may be given up for good: then its link breaks, or when it was the last one is lost.
template <Endpoint E>
void StripedEndpoint<E>::look_for_faults()
  requires Mending<E>
{
  bool out = false;
  for (PeerIndex index = 0; index < peers_.size(); ++index) {
    Peer& peer = peers_[index];
    if (!peer.fault.empty()) continue;
    const uint32_t whole = (1u << peer.at.size()) - 1;
    uint32_t found = 0;
    for (uint32_t i = 0; i < peer.at.size(); ++i) found |= faulty(peer, i) ? 1u << i : 0;
    out = out || (peer.stripes.up() != 0 && peer.stripes.up() != whole);
    if (found == peer.given_up) continue;
    peer.given_up = found;
    broken_.push_back(index);
    std::string why;
    for (uint32_t i = 0; i < peer.at.size(); ++i)
      detail::add_reason(why, lines_[i].fault(peer.at[i]));
    detail::add_reason(peer.broken, why);
    if (found == whole || (peer.own.era == 0 && !met(index))) peer.fault = why;
    peer.shut = true;
  }
  looks_ = looks_ + 1;
  if (out && looks_ % detail::kJoinLooks == 0) meet();
}

}  // namespace epfabric::agent
