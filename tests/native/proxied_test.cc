// Low-latency dispatch and combine, the kernels' own code on the CPU, between ranks of which some
// share memory and others are reached through real cores: FIFO, proxy, network, signal.
#include <doctest/doctest.h>

#include <atomic>
#include <set>
#include <thread>

#include "callers.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

#if defined(__SANITIZE_THREAD__)  // under which each change of fibers takes long
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif
constexpr uint64_t kTrips = kSlow ? 1 : 4;

GroupShape nodes(std::vector<std::vector<uint32_t>> ranks, uint32_t rings, const char* provider) {
  GroupShape shape{std::move(ranks), {}, rings};
  shape.proxies.assign(shape.nodes.size(), 1);
  shape.settings.provider = provider;
  return shape;
}

std::vector<const char*> providers() {
#if defined(__SANITIZE_THREAD__)  // which cannot see into libfabric
  return {"twin"};
#else
  return {"tcp;ofi_rxm", "twin", kEfa};
#endif
}

}  // namespace

TEST_CASE("tokens go to other nodes through the agents and come back summed, beside the node's") {
  for (const char* provider : providers()) {
    CAPTURE(provider);
    const std::vector<Bed> beds = {
        {nodes({{0, 1}, {2, 3}}, 4, provider), {4, 8, 19, 256, 4}, 2},
        // More pieces than a ring has slots: 12 for each of two ranks.
        {nodes({{0}, {1}, {2}}, 2, provider), {3, 3, 90, 128, 2}, 1},
        {.group = nodes({{0, 1}, {2}}, 3, provider), .shape = {3, 6, 10, 128, 3}, .apart = true},
        {nodes({{0, 1, 2}}, 2, provider), {3, 6, 70, 256, 4}, 3},  // without agents
    };
    for (const Bed& bed : beds) {
      Callers bedded(bed);
      bedded.on_each([](Caller& caller) {
        for (uint64_t call = 0; call < kTrips; ++call) caller.trip(call, call % 2 == 0);
        caller.two_trips(kTrips);
        caller.trip(kTrips + 2, false);
        caller.rank.settle();
      });
      CHECK(bedded.refused() == 0);
    }
  }
}

TEST_CASE("a rank of another node that does not come ends the wait for it, with its number") {
  Bed bed{nodes({{0}, {1}}, 2, "twin"), {2, 4, 6, 128, 2}};
  bed.timeout_ns = 200'000'000;
  Callers bedded(bed);
  Batch batch = batch_of(bed.shape, 0, 0);
  bedded.callers[0]->rank.dispatch(batch, kBoth);
  CHECK(bedded.callers[0]->rank.failed() == in_vain(kTokens, 1));
  bedded.callers[0]->rank.dispatch(batch, kBoth);  // ends at once
}

TEST_CASE("dispatches alone overtake no late rank, before a change of shape and after it") {
  const host_kernels::Shape large{3, 6, 24, 256, 3}, small{3, 3, 11, 128, 2};
  const Bed bed{nodes({{0}, {1, 2}}, 3, "twin"), large, 2};
  Callers bedded(bed);
  std::atomic<bool> heard = true;
  bedded.on_each([&](Caller& caller) {
    uint64_t call = 0;
    for (const host_kernels::Shape& shape : {large, small, large}) {
      caller.reshape(shape);
      caller.dispatches(call, [&](uint64_t i) {
        // The late one looks only when the others have sent what comes next.
        if (caller.number() != 0) return;
        for (const uint32_t from : {1, 2}) {
          if (!bedded.hears(0, from, kTokens, call + i + 1)) heard = false;
        }
      });
      caller.trip(call + kRow, true);
      call += kRow + 1;
    }
  });
  CHECK(heard);
}

TEST_CASE(
    "what a rank has not read yet, tokens or rows, is not written over by who sends it more") {
  Bed bed{nodes({{0}, {1}}, 2, "twin"), {2, 4, 6, 128, 2}};
  bed.timeout_ns = 500'000'000;  // what comes has come before it is waited for
  for (const Said what : {kTokenRoom, kRowRoom}) {
    CAPTURE(what);
    Callers bedded(bed);
    std::vector<Batch> batches[2];
    for (uint32_t rank = 0; rank < 2; ++rank) {
      for (uint64_t call = 0; call < 3; ++call) {
        batches[rank].push_back(batch_of(bed.shape, call, rank));
        batches[rank].back().early = true;
      }
    }
    Caller &fast = *bedded.callers[0], &late = *bedded.callers[1];
    const auto both_send = [&](uint64_t call, bool rows) {
      for (const uint32_t rank : {1, 0}) {
        host_kernels::Rank& sender = bedded.callers[rank]->rank;
        Batch& batch = batches[rank][call];
        rows ? sender.combine(batch, kSend) : sender.dispatch(batch, kSend);
      }
      for (const uint32_t rank : {1, 0}) {
        REQUIRE(bedded.hears(rank, 1 - rank, rows ? kRows : kTokens, call + 1));
      }
    };
    const bool rows = what == kRowRoom;
    for (uint64_t call = 0; rows && call < 3; ++call) {
      both_send(call, false);
      fast.receive(batches[0][call], call);
      late.receive(batches[1][call], call);
    }
    both_send(0, rows);
    both_send(1, rows);
    rows ? fast.receive_sums(batches[0][0]) : fast.receive(batches[0][0], 0);
    rows ? fast.rank.combine(batches[0][2], kSend) : fast.rank.dispatch(batches[0][2], kSend);
    CHECK(fast.rank.failed() == in_vain(what, 1));
    for (uint64_t call = 0; call < 2; ++call) {
      rows ? late.receive_sums(batches[1][call]) : late.receive(batches[1][call], call);
    }
    CHECK(fast.wrong() == "");
    CHECK(late.wrong() == "");
  }
}

// Of what is in memory, not of who looks when.
TEST_CASE("no word of a call passes for one of another, whatever shapes came between" *
          doctest::skip(kSlow)) {
  // Weights and rows of the large one have no words.
  const host_kernels::Shape large{2, 16, 1100, 128, 2}, small{2, 16, 12, 128, 8},
      other{2, 4, 30, 128, 3};
  Callers bedded({nodes({{0, 1}}, 2, "twin"), large, 2});
  bedded.on_each([&](Caller& caller) {
    uint64_t call = 0;
    for (const host_kernels::Shape& shape : {small, large, small, other, large}) {
      caller.reshape(shape);
      caller.two_trips(call);
      caller.trip(call + 2, false);
      call += 3;
    }
  });
}

TEST_CASE("a rank that waits in vain for weights says nothing of the sums that it has not made") {
  Bed bed{nodes({{0, 1}}, 2, "twin"), {2, 4, 40, 128, 2}, 2};
  bed.timeout_ns = 500'000'000;
  Callers bedded(bed);
  std::vector<Batch> batches;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    batches.push_back(batch_of(bed.shape, 0, rank));
    batches[rank].count = bed.shape.tokens;
    batches[rank].early = false;
  }
  for (const uint32_t phase : {kSend, kReceive}) {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      bedded.callers[rank]->rank.dispatch(batches[rank], phase);
    }
  }
  for (uint32_t rank = 0; rank < 2; ++rank) {
    std::fill(batches[rank].rows.begin(), batches[rank].rows.end(), 0);
    bedded.callers[rank]->rank.combine(batches[rank], kBoth);
  }
  CHECK(bedded.callers[0]->rank.failed() != 0);  // weights or rows, whichever was given up last
  CHECK(bedded.callers[1]->rank.failed() == in_vain(kRows, 0));
}

TEST_CASE("a ring whose slots are not taken is known as lost, whatever else failed with it") {
  Bed bed{nodes({{0}, {1}}, 2, "twin"), {2, 2, 180, 128, 2}};
  bed.timeout_ns = 200'000'000;
  bed.first_ticket = 1;  // the proxy waits for the slot before
  Callers bedded(bed);
  host_kernels::Rank& rank = bedded.callers[0]->rank;
  Batch batch = batch_of(bed.shape, 0, 0);
  batch.count = bed.shape.tokens;  // more pieces than a ring has slots
  std::fill(batch.topk.begin(), batch.topk.end(), 1);
  rank.dispatch(batch, kBoth);
  CHECK(rank.failed() != 0);  // tokens or the ring, whichever was given up last
  CHECK(rank.lost_ring());
}

TEST_CASE("what goes to a rank is left as it is once that is masked: its agent may yet read it") {
  Bed bed{nodes({{0}, {1}}, 2, "twin"), {2, 4, 6, 128, 2}};
  bed.mask = true;
  bed.timeout_ns = 200'000'000;
  Callers bedded(bed);
  const uint64_t half = host_kernels::region_bytes(bed.shape) / 2;
  const std::byte* outgoing = bedded.pod(0).memory() + kOffset + half;
  const auto dispatch = [&](uint64_t call) {
    Batch batch = batch_of(bed.shape, call, 0);
    bedded.callers[0]->rank.dispatch(batch, kBoth);
    return std::vector<std::byte>(outgoing, outgoing + half);
  };
  const std::vector<std::byte> before = dispatch(0);
  CHECK(bedded.callers[0]->rank.masked(1));
  CHECK((dispatch(1) == before));
  CHECK((dispatch(2) == before));
}

TEST_CASE("an abort ends what a kernel waits for of another node") {
  const Bed bed{nodes({{0}, {1}}, 2, "twin"), {2, 4, 6, 128, 2}};
  Callers bedded(bed);
  std::thread waits([&] {
    Batch batch = batch_of(bed.shape, 0, 0);
    bedded.callers[0]->rank.dispatch(batch, kBoth);
  });
  // Its tokens have come, so it waits.
  const uint64_t* sent = bedded.pod(1).session->segments().signal(0, kFirstRing, kFirstSignal + 1);
  CHECK(wait_at_least(sent, 1, bedded.pod(1).aborts(), kTestLimitNs) == Waited::kDone);
  const Segments& segments = bedded.pod(0).session->segments();
  platform::store_release(&const_cast<PodHeader*>(segments.pod_header())->abort, 1);
  waits.join();
  CHECK(bedded.callers[0]->rank.failed() != 0);
}

TEST_CASE("a rank that the agents have lost is masked, and the others go on without it") {
  Bed bed{nodes({{0}, {1}, {2}}, 2, "twin"), {3, 6, 10, 128, 3}};
  bed.mask = true;
  Callers bedded(bed);
  bedded.on_each([](Caller& caller) { caller.trip(0, false); });
  for (uint32_t node = 0; node < 3; ++node) bedded.core(node).mask_ranks(1, {2});
  bedded.on_each(
      [](Caller& caller) {
        for (uint64_t call = 1; call <= kTrips; ++call) caller.trip(call, call % 2 == 1, {2});
      },
      {2});
  for (uint32_t rank = 0; rank < 2; ++rank) CHECK(bedded.callers[rank]->rank.masked(2));
}
