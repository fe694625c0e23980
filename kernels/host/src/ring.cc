// Batching and bounded waits around fifo.h's Producer; called by module.cc without the GIL.
#include "ring.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace epfabric::host {

Ring::Ring(std::shared_ptr<Segments> segments, uint32_t index, uint32_t batch)
    : segments_(std::move(segments)), batch_(batch) {
  if (index >= segments_->geometry().rings) {
    throw std::invalid_argument("the session has " + std::to_string(segments_->geometry().rings) +
                                " rings; there is no ring " + std::to_string(index));
  }
  const uint32_t depth = segments_->geometry().depth;
  if (batch_ == 0 || batch_ > kMaxBatch || batch_ > depth) {
    throw std::invalid_argument("a batch has 1 to " + std::to_string(kMaxBatch) + " commands");
  }
  counters_ = segments_->counters(index);
  results_ = segments_->results(index);
  producer_ = Producer{segments_->slots(index), &counters_->tail, 0, 0, depth};
}

Waited Ring::add(const Slot& command, uint64_t timeout_ns, uint64_t& ticket) {
  return collect(&command, 1, timeout_ns, ticket);
}

Waited Ring::add_pair(const Slot (&pair)[2], uint64_t timeout_ns, uint64_t& ticket) {
  return collect(pair, 2, timeout_ns, ticket);
}

// Both slots of a pair or none, since the proxy takes nothing behind the first until the second is
// there; a batch of one is exceeded for them.
Waited Ring::collect(const Slot* commands, uint32_t count, uint64_t timeout_ns, uint64_t& ticket) {
  const Holder holder(held_);
  if (pending_ > 0 && pending_ + count > batch_) {
    const Waited waited = publish(open_, pending_, timeout_ns);
    if (waited != Waited::kDone) return waited;
    pending_ = 0;
  }
  ticket = producer_.head + pending_;
  std::copy_n(commands, count, open_ + pending_);
  pending_ += count;
  return Waited::kDone;
}

Waited Ring::flush(uint64_t timeout_ns) {
  const Holder holder(held_);
  const Waited waited = publish(open_, pending_, timeout_ns);
  if (waited == Waited::kDone) pending_ = 0;
  return waited;
}

Waited Ring::push(std::span<const Slot> commands, uint64_t timeout_ns, uint64_t& pushed) {
  const Holder holder(held_);
  pushed = 0;
  Waited waited = publish(open_, pending_, timeout_ns);
  if (waited != Waited::kDone) return waited;
  pending_ = 0;
  while (!commands.empty()) {
    const auto count = static_cast<uint32_t>(std::min<std::size_t>(batch_, commands.size()));
    waited = publish(commands.data(), count, timeout_ns);
    if (waited != Waited::kDone) return waited;
    pushed += count;
    commands = commands.subspan(count);
  }
  return Waited::kDone;
}

Waited Ring::wait(uint64_t ticket, uint64_t timeout_ns) {
  const Waited waited = flush(timeout_ns);
  if (waited != Waited::kDone) return waited;
  // Partner: the proxy's release store of `completed`.
  return wait_at_least(&counters_->completed, ticket + 1, segments_->aborts(), timeout_ns);
}

Waited Ring::publish(const Slot* commands, uint32_t count, uint64_t timeout_ns) {
  if (count == 0 || producer_.try_push(commands, count)) return Waited::kDone;
  // Room for the whole batch: the slots below head + count - depth are taken.
  const uint64_t taken = producer_.head + count - producer_.depth;
  const Waited waited = wait_at_least(producer_.tail, taken, segments_->aborts(), timeout_ns);
  if (waited != Waited::kDone) return waited;
  return producer_.try_push(commands, count) ? Waited::kDone : Waited::kTimedOut;
}

uint64_t Ring::completed() const { return platform::load_acquire(&counters_->completed); }

std::optional<uint64_t> Ring::result(uint64_t ticket) const {
  uint64_t old = 0;
  if (!results_[ticket & (producer_.depth - 1)].read(ticket, old)) return std::nullopt;
  return old;
}

uint64_t Ring::tail() const { return platform::load_relaxed(&counters_->tail); }

Refused Ring::refused() const {
  Refused refused{};
  refused.count = platform::load_acquire(&counters_->refused);  // stored after the two below
  refused.last_ticket = platform::load_relaxed(&counters_->last_refused_ticket);
  refused.last_reason = platform::load_relaxed(&counters_->last_refused_reason);
  return refused;
}

}  // namespace epfabric::host
