// Commands through rings from one producer thread to one consumer thread: ours (fifo.h, in the
// memfds of a session) beside a ring with an atomic index. The consumer compares each command with
// what has to come next on its ring.
#include <epfabric/fifo.h>

#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "bench.h"
#include "segment.h"

using namespace epfabric;
using namespace epfabric::bench;

namespace {

constexpr uint32_t kDepth = 1024;
constexpr uint32_t kBatch = 32;  // taken from a ring before the producer is told, as a proxy does
constexpr Metric kRate{"commands_per_second", "1/s", true};
constexpr Metric kTrip{"round_trip_seconds", "s", false};

// The command with this ticket on this ring: no two are alike.
Slot command_of(uint32_t ring, uint64_t ticket) {
  return {head_of(Op::kWrite, ring) | (ticket & field::kLow32),
          (ticket * 0x9e3779b97f4a7c15) & ~kLapBit};
}

// What both sides offer: push() all of a batch or nothing, pop() one or nothing, tell() the
// producer of all that was popped, done() how many it was told of.
class OurRing {
 public:
  static constexpr const char* kSide = kOurs;
  OurRing(const agent::Segments& segments, uint32_t ring)
      : producer_{const_cast<Slot*>(segments.slots(ring)), &segments.counters(ring)->tail, 0, 0,
                  kDepth},
        consumer_{segments.slots(ring), 0, kDepth},
        counters_(segments.counters(ring)) {}

  bool push(const Slot* commands, uint32_t count) { return producer_.try_push(commands, count); }
  bool pop(Slot& out) {
    if (!consumer_.peek(0, out)) return false;
    consumer_.next += 1;
    return true;
  }
  void tell() {
    platform::store_release(&counters_->tail, consumer_.next);  // partner: Producer::try_push()
    platform::store_release(&counters_->completed, consumer_.next);  // partner: done()
  }
  uint64_t done() const { return platform::load_acquire(&counters_->completed); }

 private:
  alignas(64) Producer producer_;
  alignas(64) Consumer consumer_;
  RingCounters* counters_;
};

// The usual single-producer ring: indices are atomics, the producer publishes with one release
// store of its head for a push, and either end keeps a copy of the other's index.
class IndexRing {
 public:
  static constexpr const char* kSide = "ring with an atomic head index";
  IndexRing(const agent::Segments&, uint32_t) : slots_(kDepth) {}

  bool push(const Slot* commands, uint32_t count) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head + count - cached_tail_ > kDepth) {
      cached_tail_ = tail_.load(std::memory_order_acquire);  // partner: tell()
      if (head + count - cached_tail_ > kDepth) return false;
    }
    for (uint32_t i = 0; i < count; ++i) slots_[(head + i) & (kDepth - 1)] = commands[i];
    head_.store(head + count, std::memory_order_release);  // partner: pop()
    return true;
  }
  bool pop(Slot& out) {
    if (next_ == cached_head_) {
      cached_head_ = head_.load(std::memory_order_acquire);  // partner: push()
      if (next_ == cached_head_) return false;
    }
    out = slots_[next_++ & (kDepth - 1)];
    return true;
  }
  void tell() { tail_.store(next_, std::memory_order_release); }  // partners: push(), done()
  uint64_t done() const { return tail_.load(std::memory_order_acquire); }

 private:
  std::vector<Slot> slots_;
  alignas(64) std::atomic<uint64_t> head_{0};
  uint64_t cached_tail_ = 0;
  alignas(64) std::atomic<uint64_t> tail_{0};
  alignas(64) uint64_t next_ = 0;
  uint64_t cached_head_ = 0;
};

template <class Ring>
class Pair {
 public:
  Pair(uint32_t rings, uint32_t batch)
      : segments_({0, 1, rings, kDepth, 1}), batch_(batch), sent_(rings), taken_(rings) {
    for (uint32_t i = 0; i < rings; ++i) rings_.push_back(std::make_unique<Ring>(segments_, i));
  }

  // Seconds that `commands` took, from the first push until the consumer had the last.
  double stream(uint64_t commands) {
    return with_consumer(commands, [&] {
      for (uint64_t pushed = 0; pushed < commands; pushed += batch_) push_next();
    });
  }

  // Seconds of each of `trips`: from a push until the producer sees that it is done.
  std::vector<double> trips(uint64_t trips) {
    std::vector<double> out;
    out.reserve(trips);
    with_consumer(trips * batch_, [&] {
      for (uint64_t i = 0; i < trips; ++i) {
        const uint64_t begin = now_ns();
        const uint32_t ring = push_next();
        for (uint32_t looks = 0; rings_[ring]->done() < sent_[ring];) spin(looks);
        out.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
      }
    });
    return out;
  }

  bool verified() const { return right_ && sent_ == taken_; }

 private:
  template <class Produce>
  double with_consumer(uint64_t commands, Produce&& produce) {
    pin(0);
    std::atomic<bool> ready{false};
    std::thread consumer([&] {
      pin(1);
      ready.store(true, std::memory_order_release);
      consume(commands);
    });
    while (!ready.load(std::memory_order_acquire)) ::sched_yield();
    const uint64_t begin = now_ns();
    produce();
    consumer.join();
    return static_cast<double>(now_ns() - begin) * 1e-9;
  }

  // One batch to the next ring in turn.
  uint32_t push_next() {
    const uint32_t ring = turn_;
    turn_ = turn_ + 1 == rings_.size() ? 0 : turn_ + 1;
    std::array<Slot, kMaxBatch> batch;
    for (uint32_t i = 0; i < batch_; ++i) batch[i] = command_of(ring, sent_[ring] + i);
    for (uint32_t looks = 0; !rings_[ring]->push(batch.data(), batch_);) spin(looks);
    sent_[ring] += batch_;
    return ring;
  }

  void consume(uint64_t commands) {
    uint32_t looks = 0;
    for (uint64_t left = commands; left > 0;) {
      uint64_t got = 0;
      for (uint32_t ring = 0; ring < rings_.size(); ++ring) got += take_some(ring);
      left -= got;
      if (got == 0) spin(looks);
    }
  }

  uint32_t take_some(uint32_t ring) {
    uint32_t got = 0;
    uint64_t ticket = taken_[ring];
    for (Slot slot; got < kBatch && rings_[ring]->pop(slot); ++got) {
      const Slot expected = command_of(ring, ticket++);
      right_ = right_ && slot.lo == expected.lo && slot.hi == expected.hi;
    }
    if (got == 0) return 0;
    taken_[ring] = ticket;
    rings_[ring]->tell();
    return got;
  }

  agent::Segments segments_;
  std::vector<std::unique_ptr<Ring>> rings_;
  const uint32_t batch_;
  uint32_t turn_ = 0;
  std::vector<uint64_t> sent_;               // by ring; the producer's
  alignas(64) std::vector<uint64_t> taken_;  // by ring; the consumer's
  bool right_ = true;
};

template <class Ring>
void measure(uint32_t rings, uint32_t batch, uint64_t round, const Options& options) {
  const std::string name = std::to_string(rings) + (rings == 1 ? " ring" : " rings") + ", batch " +
                           std::to_string(batch);
  Pair<Ring> pair(rings, batch);
  pair.stream(kDepth * rings);  // warms up
  const uint64_t commands = options.number("commands", 100'000) / kMaxBatch * kMaxBatch;
  std::vector<double> rates;
  for (uint64_t i = 0; i < options.number("streams", 20); ++i) {
    rates.push_back(static_cast<double>(commands) / pair.stream(commands));
  }
  const std::vector<double> trips = pair.trips(options.number("trips", 1000));
  print_samples(name, kRate, Ring::kSide, round, pair.verified(), rates);
  print_samples(name, kTrip, Ring::kSide, round, pair.verified(), trips);
}

}  // namespace

int main(int count, char** values) {
  const Options options(count, values);
  for (uint64_t round = 0; round < options.number("rounds", 9); ++round) {
    for (const uint32_t rings : {1u, 8u}) {
      for (const uint32_t batch : {1u, kMaxBatch}) {
        measure<OurRing>(rings, batch, round, options);
        measure<IndexRing>(rings, batch, round, options);
      }
    }
  }
}
