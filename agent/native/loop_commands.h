// The part of a proxy's loop that serves rings: from a visible slot to a posted command. Included
// by proxy.cc.
#pragma once

#include <algorithm>

#include "loop.h"
#include "loop_atomics.h"
#include "session.h"

namespace epfabric::agent {

// What one turn posts, but for the command that passes it: same-node writes are copied here, and
// the heartbeat and who ends a session wait for the turn's end.
inline constexpr uint64_t kTurnBytes = 8u << 20;

template <class Remote>
uint32_t Loop<Remote>::serve_rings() {
  if (!epoch_ || !epoch_->running() || epoch_->masked(shape_.rank)) return 0;
  turn_bytes_ = 0;
  const uint32_t batch = proxy_.settings_.drain_batch;
  const uint32_t control = serve_pass(true, batch);
  return control + serve_pass(false, batch - control);
}

// A ring could keep a proxy busy with ATOMICs alone, so these wait as WRITEs do.
constexpr bool is_bulk(Op op) { return op == Op::kWrite || op == Op::kAdd || op == Op::kCas; }

// Serves the rings whose next command is control, or those where it is bulk.
template <class Remote>
uint32_t Loop<Remote>::serve_pass(bool control, uint32_t budget) {
  uint32_t used = 0;
  size_t kept = 0;
  std::array<Ring*, kMaxRings> served;
  size_t served_count = 0;
  for (size_t i = 0; i < order_.size(); ++i) {
    Ring& ring = *order_[i];
    uint32_t left = budget - used;
    const bool holds = ring.holding() || (left > 0 && ring.take(view_, left));
    used = budget - left;
    uint32_t now = 0;
    if (holds && left > 0 && is_bulk(ring.held().command.op) != control) now = serve(ring, left);
    used += now;
    if (now > 0) {
      served[served_count++] = &ring;
    } else {
      order_[kept++] = &ring;
    }
  }
  std::copy_n(served.begin(), served_count, order_.begin() + static_cast<std::ptrdiff_t>(kept));
  return used;
}

// Posts the command that the ring holds and takes further ones, until it is empty, busy, or a
// budget (of commands or of bytes) is spent.
template <class Remote>
uint32_t Loop<Remote>::serve(Ring& ring, uint32_t budget) {
  uint32_t left = budget;
  if (turn_bytes_ >= kTurnBytes) return 0;
  do {
    if (ring.neighbour_likely()) ring.join(view_, proxy_.settings_.limits.joining, left);
    if (!advance(ring)) break;
    left -= 1;
  } while (left > 0 && turn_bytes_ < kTurnBytes && ring.take(view_, left));
  return budget - left;
}

// True when the held command is posted whole.
template <class Remote>
bool Loop<Remote>::advance(Ring& ring) {
  Held& held = ring.held();
  if (held.command.op <= Op::kSignal) return advance_write(ring, held);  // or kWrite: most are
  switch (held.command.op) {
    case Op::kAdd:
    case Op::kCas:
      return advance_atomic(ring, held);
    case Op::kBarrier:
      return advance_barrier(ring, held);
    default:
      // DRAIN: tickets retire in order, and this one waits for word from each destination that has
      // not acknowledged all: its turn comes exactly when all earlier ones are visible there.
      if (!remote_.drain(ring, held.serial)) return false;
      ring.finish();
      return true;
  }
}

template <class Remote>
bool Loop<Remote>::advance_write(Ring& ring, Held& held) {
  const uint32_t rank = held.command.write.rank;
  if (epoch_->state(rank) != kPresent) return pass_over(ring, rank);
  if (!loopback_.serves(rank)) return post(remote_, ring, held);
  const Command& command = held.command;
  if (command.write.units > 0 &&
      !loopback_.may_write(rank, command.source_region, command.destination_region)) {
    ring.give_up(Refusal::kUnsupported);  // such ranks reach each other's memory by themselves
    return true;
  }
  return post(loopback_, ring, held);
}

// The held command's destination is gone, and with that the command; true.
template <class Remote>
bool Loop<Remote>::pass_over(Ring& ring, uint32_t rank) {
  if (epoch_->state(rank) == kLeft) {
    ring.give_up(Refusal::kRankLeft);
  } else {
    ring.mask();
  }
  return true;
}

template <class Remote>
template <class To>
bool Loop<Remote>::post(To& to, Ring& ring, Held& held) {
  const Command& command = held.command;
  const Write& write = command.write;
  DestinationCount& count = proxy_.destinations_[write.rank];
  const uint64_t size = uint64_t{write.units} * kUnitBytes;
  uint64_t* value = write.advance != 0 ? &signal_value(ring, write) : nullptr;
  const SignalPart signal{&ring, write.rank, write.signal, value ? *value + write.advance : 0};
  bool signalled = false;
  while (held.posted_bytes < size) {
    const WritePart part{&ring,
                         write.rank,
                         command.source_region,
                         command.destination_region,
                         uint64_t{write.source} * kUnitBytes + held.posted_bytes,
                         uint64_t{write.destination} * kUnitBytes + held.posted_bytes,
                         size - held.posted_bytes};
    const Posted posted = to.write(part, value != nullptr ? &signal : nullptr);
    if (posted.bytes == 0) return false;
    if (posted.pending) ring.add_part();
    held.posted_bytes += posted.bytes;
    count.bytes.add(posted.bytes);
    turn_bytes_ += posted.bytes;
    signalled = posted.signalled;
  }
  if (value != nullptr) {
    if (!signalled) {
      const Posted posted = to.signal(signal);
      if (posted.bytes == 0) return false;
      if (posted.pending) ring.add_part();
    }
    *value = signal.value;
    count.signals.add(1 + held.fused);
  }
  if (size != 0) count.writes.add(1 + held.joined);
  note_undelivered();
  ring.finish();
  return true;
}

// Before the ring moves on: who sees it quiet must also see what is not delivered yet.
template <class Remote>
void Loop<Remote>::note_undelivered() {
  if (remote_.undelivered() == undelivered_) return;
  undelivered_ = remote_.undelivered();
  proxy_.undelivered_.store(undelivered_, std::memory_order_release);  // partner: undelivered()
}

template <class Remote>
uint64_t& Loop<Remote>::signal_value(const Ring& ring, const Write& write) {
  const uint64_t served = ring.index() / proxy_.proxies_;
  const uint64_t word = (served * shape_.world + write.rank) * shape_.signals + write.signal;
  return reinterpret_cast<uint64_t*>(signal_values_.data())[word];
}

template <class Remote>
bool Loop<Remote>::advance_barrier(Ring& ring, Held& held) {
  if (held.command.rail) return advance_rail(ring, held);
  Meeting& meeting = epoch_->meeting();
  if (!held.announced) {
    held.announced = true;
    meeting.announce(barriers_, position_, platform::clock_ns());
  }
  if (!held.entered) {
    if (ring.retired() != ring.ticket() || !session_quiet()) return false;
    held.entered = true;
    meeting.enter(barriers_, position_, platform::clock_ns());
  }
  if (!meeting.released(barriers_)) return false;
  ring.finish();
  left_last_ = meeting.leave(barriers_);
  if (left_last_) left_ns_ = platform::clock_ns();
  barriers_ += 1;
  return true;
}

// The same for the ranks of one rail, one on each node: this one is its node's delegate.
template <class Remote>
bool Loop<Remote>::advance_rail(Ring& ring, Held& held) {
  if (!held.announced) {
    held.announced = true;
    rail_meeting_.announce(rails_, 0, platform::clock_ns());
  }
  if (!held.entered) {
    if (ring.retired() != ring.ticket() || !session_quiet()) return false;
    held.entered = true;
    rail_meeting_.enter(rails_, 0, platform::clock_ns());
  }
  if (!rail_meeting_.released(rails_)) return false;
  ring.finish();
  const BarrierStamps& stamps = rail_meeting_.stamps(rails_);
  const uint64_t now_ns = platform::clock_ns();
  epoch_->stats().rails().record(Phase::kRelease, stamps.collected.network_ns, now_ns);
  epoch_->stats().rails().record(Phase::kTotal, stamps.first_ns, now_ns);
  rail_meeting_.leave(rails_);
  rails_ += 1;
  return true;
}

// The last one to leave writes down when, once its rank is let go; the stamps stand until that rank
// enters the next barrier.
template <class Remote>
void Loop<Remote>::record_barrier() {
  if (!left_last_) return;
  left_last_ = false;
  epoch_->barrier_left(barriers_ - 1, left_ns_);
}

// Ring 0 holds the BARRIER; every other ring has to have nothing outstanding and nothing visible,
// and what all of them wrote has to be visible at its destinations.
template <class Remote>
bool Loop<Remote>::session_quiet() const {
  return std::all_of(proxy_.rings_.begin(), proxy_.rings_.end(),
                     [](const auto& ring) { return ring->index() == 0 || ring->idle(); }) &&
         session_->delivered();
}

}  // namespace epfabric::agent
