// What a striped endpoint does when a line's connection breaks. All lines of that peer are severed
// and made anew; each end tells how many immediates came by each, so that the other knows of every
// write that failed whether it is there. It goes on over the first line that is met, and others
// join. A line that is out carries nothing, and is made anew by itself. Included by
// striped_endpoint.h; docs/ordering.md argues why it is right.
#pragma once

#include <algorithm>

#include "striped_endpoint.h"

namespace epfabric::agent {
namespace detail {

inline constexpr uint32_t kJoinLooks = 4;  // calls of attend() until lines that are out are tried

}  // namespace detail

template <Endpoint E>
bool StripedEndpoint<E>::next_broken(PeerIndex& out)
  requires Mending<E>
{
  for (uint32_t i = 0; i < lines_.size(); ++i) {
    PeerIndex at = 0;
    while (lines_[i].next_broken(at)) broke(i, owners_[i][at]);
  }
  if (broken_.empty()) return false;
  out = broken_.back();
  broken_.pop_back();
  return true;
}

// One that is out breaks no other, unless the peer is in a later era: then all lines are old.
template <Endpoint E>
void StripedEndpoint<E>::broke(uint32_t line, PeerIndex index)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  detail::add_reason(peer.broken, lines_[line].broken_by(peer.at[line]));
  if (peer.severing) return;
  const bool up = (peer.stripes.up() >> line & 1) != 0;
  const bool by_peer = lines_[line].told(peer.at[line]).era > peer.own.era;
  if (!up && !by_peer) {
    peer.alone |= 1u << line;
    return;
  }
  broken_.push_back(index);
  if (!by_peer && peer.stripes.inflight(line) > 0) note_break(peer, line, 0);
}

template <Endpoint E>
void StripedEndpoint<E>::note_break(Peer& peer, uint32_t line, uint64_t bytes)
  requires Mending<E>
{
  if (peer.severing || (peer.failed >> line & 1) != 0) return;
  peer.failed |= 1u << line;
  peer.breaks[line].broke(bytes);
}

template <Endpoint E>
bool StripedEndpoint<E>::sever(PeerIndex index)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  peer.severing = true;
  bool out = true;
  for (size_t i = 0; i < peer.at.size(); ++i) out = lines_[i].sever(peer.at[i]) && out;
  return out;
}

template <Endpoint E>
void StripedEndpoint<E>::give_up(PeerIndex index, uint32_t tries)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (faulty(peer, i) || peer.breaks[i].count() > tries) peer.given_up |= 1u << i;
  }
  if (peer.given_up == peer.all()) peer.fault = why_given_up(peer);
}

template <Endpoint E>
std::string StripedEndpoint<E>::why_given_up(const Peer& peer) const
  requires Mending<E>
{
  std::string out;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const std::string& fault = lines_[i].fault(peer.at[i]);
    detail::add_reason(out, fault);
    if (fault.empty() && (peer.given_up >> i & 1) != 0) {
      detail::add_reason(
          out, "its connection broke again and again (" + lines_[i].broken_by(peer.at[i]) + ")");
    }
  }
  return out;
}

template <Endpoint E>
void StripedEndpoint<E>::remake(PeerIndex index, const Told&)
  requires Mending<E>
{
  Peer& peer = peers_[index];
  std::erase(broken_, index);
  peer.own.era += 1;
  peer.shut = peer.severing = false;
  peer.failed = peer.alone = 0;
  peer.stripes = Stripes(static_cast<uint32_t>(peer.at.size()), selection_, 0);
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if (!faulty(peer, i)) lines_[i].remake(peer.at[i], peer.own);
  }
}

// In the era that the others are in.
template <Endpoint E>
void StripedEndpoint<E>::remake_alone(Peer& peer)
  requires Mending<E>
{
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    if ((peer.alone >> i & 1) == 0 || !lines_[i].sever(peer.at[i])) continue;
    peer.alone &= ~(1u << i);
    if (!faulty(peer, i)) lines_[i].remake(peer.at[i], peer.own);
  }
}

// Lines that were met since are used from now on. With the first of an era it is known what of all
// that was sent before has arrived.
template <Endpoint E>
void StripedEndpoint<E>::join(Peer& peer)
  requires Mending<E>
{
  if (peer.own.era == 0 || peer.stripes.up() == peer.all()) return;
  for (uint32_t i = 0; i < peer.at.size(); ++i) {
    const PeerIndex at = peer.at[i];
    const bool up = (peer.stripes.up() >> i & 1) != 0;
    if (up || !lines_[i].met(at) || (peer.alone >> i & 1) != 0 || faulty(peer, i)) continue;
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

// A line may be given up for good: then its link breaks if it carried, or when it was the last one
// is lost.
template <Endpoint E>
void StripedEndpoint<E>::look_for_faults()
  requires Mending<E>
{
  bool out = false;
  for (PeerIndex index = 0; index < peers_.size(); ++index) {
    Peer& peer = peers_[index];
    if (!peer.fault.empty()) continue;
    if (peer.alone != 0 && !peer.severing) remake_alone(peer);
    const uint32_t up = peer.stripes.up();
    out = out || (up != 0 && up != peer.all());
    uint32_t found = 0;
    for (uint32_t i = 0; i < peer.at.size(); ++i) found |= faulty(peer, i) ? 1u << i : 0;
    const uint32_t fresh = found & ~peer.given_up;
    if (fresh == 0) continue;
    peer.given_up = found;
    const std::string why = why_given_up(peer);
    detail::add_reason(peer.broken, why);
    if (found == peer.all() || (peer.own.era == 0 && !peer.begun)) peer.fault = why;
    if (peer.fault.empty() && (fresh & up) == 0) continue;
    broken_.push_back(index);
    peer.shut = true;
  }
  looks_ = looks_ + 1;
  if (out && looks_ % detail::kJoinLooks == 0) meet();
}

}  // namespace epfabric::agent
