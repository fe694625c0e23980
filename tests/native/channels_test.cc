// High-throughput dispatch and combine, the kernels' own code on the CPU, between ranks of which
// some share memory and others are reached through real cores: FIFO, proxy, network, signal.
#include <doctest/doctest.h>

#include <thread>

#include "channel_callers.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

#if defined(__SANITIZE_THREAD__)  // which cannot see into libfabric, and makes fibers slow
constexpr bool kFew = true;
constexpr const char* kProviders[] = {"twin"};
#else
constexpr bool kFew = false;
constexpr const char* kProviders[] = {"tcp;ofi_rxm", "twin"};
#endif

GroupShape nodes(std::vector<std::vector<uint32_t>> ranks, uint32_t rings, const char* provider) {
  GroupShape shape{std::move(ranks), {}, rings};
  shape.proxies.assign(shape.nodes.size(), 1);
  shape.settings.provider = provider;
  return shape;
}

// Numbers as in epfabric::ChannelAwaited.
enum Missed : uint32_t { kMissedRank = 1, kMissedSlots, kMissedTokens };
uint64_t why(Missed what, uint32_t rank) { return uint64_t{what} << 32 | rank; }

BulkBed pair() { return {nodes({{0}, {1}}, 2, "twin"), {{2, 1, 4, 2, 64}, 4, 6}}; }

}  // namespace

TEST_CASE("rows go to other nodes through the agents and come back summed, beside the node's") {
  for (const char* provider : kProviders) {
    CAPTURE(provider);
    const std::vector<BulkBed> beds = {
        {nodes({{0, 1}, {2, 3}}, 4, provider), {{4, 2, 5, 4, 256}, 8, 20}},
        // Rings that go round many times.
        {nodes({{0}, {1}}, 2, provider), {{2, 1, 4, 2, 64}, 4, kFew ? 5 : 40}},
        {.group = nodes({{0, 1}, {2}}, 3, provider),
         .shape = {{3, 2, 5, 3, 128}, 6, 16},
         .apart = true},
    };
    for (const BulkBed& bed : beds) {
      if (kFew && bed.shape.channels != 1) continue;
      BulkCallers bedded(bed);
      bedded.on_each([&](BulkCaller& caller) {
        BulkShape small = bed.shape;  // whose rings lie elsewhere
        small.channels = 1;
        small.slots -= 1;
        small.row_bytes /= 2;
        caller.trip(bed.shape, 0, kFew ? kOnce : kAgain);
        if (kFew) return;
        caller.trip(small, 1, kOnce, small.world * small.tokens);
        caller.trip(bed.shape, 2, kOnce);
        caller.rank.meet(bed.shape);
      });
    }
  }
}

TEST_CASE("a rank of another node that does not begin a call ends the wait for it, by its number") {
  BulkBed bed = pair();
  bed.timeout_ns = 200'000'000;
  BulkCallers bedded(bed);
  host_channels::Rank& rank = bedded.callers[0]->rank;
  Sent sent = sent_of(bed.shape, 0, 0);
  rank.dispatch(sent, 1, false);
  CHECK(rank.failed() == why(kMissedRank, 1));
  rank.dispatch(sent, 1, false);  // ends at once
  CHECK(!rank.lost_ring());
}

TEST_CASE("a ring whose slots are not taken is known as lost") {
  BulkBed bed = pair();
  bed.timeout_ns = 200'000'000;
  bed.first_ticket = bed.group.depth + 1;  // it is full, and the proxy has nothing to take
  BulkCallers bedded(bed);
  host_channels::Rank& rank = bedded.callers[0]->rank;
  rank.meet(bed.shape);
  CHECK(rank.failed() != 0);
  CHECK(rank.lost_ring());
}

TEST_CASE("an abort, or the loss of a rank that the agents know, ends what a kernel waits for") {
  for (const bool amid : {false, true}) {
    for (const bool masked : {false, true}) {
      CAPTURE(amid);
      CAPTURE(masked);
      BulkBed bed = pair();
      bed.shape.slots = bed.shape.tokens;  // it does not wait for room
      bed.mask = masked;
      BulkCallers bedded(bed);
      Sent sent = sent_of(bed.shape, 0, 0);
      std::thread waits([&] { bedded.callers[0]->rank.dispatch(sent, 1, false); });
      if (amid) bedded.callers[1]->rank.meet(bed.shape);
      // What it sent before it waits has come.
      const RankPod& pod = bedded.pod(1);
      const uint64_t* sent_word =
          pod.session->segments().signal(0, kFirstRing, kFirstSignal + (amid ? 1 : 0));
      CHECK(wait_at_least(sent_word, 1, pod.aborts(), kTestLimitNs) == Waited::kDone);
      if (masked) {
        for (uint32_t node = 0; node < 2; ++node) bedded.core(node).mask_ranks(1, {1});
      } else {
        const Segments& segments = bedded.pod(0).session->segments();
        platform::store_release(&const_cast<PodHeader*>(segments.pod_header())->abort, 1);
      }
      waits.join();
      CHECK(bedded.callers[0]->rank.failed() ==
            (amid ? why(kMissedTokens, 1) : why(kMissedRank, 1)));
    }
  }
}
