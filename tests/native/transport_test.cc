// The libfabric transport moved by hand, on one thread, to peers that take nothing until they are
// told to: what such a peer holds up comes free again.
#include <chrono>

#include "cores.h"
#include "fabric_transport.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

constexpr uint64_t kStartNs = 1000;

// Rank 0 or 1 of `world` ranks; those from 1 on are one peer under many names.
struct End {
  Core core{CoreSettings{}};
  Fabric fabric{"twin", "127.0.0.1"};
  Events events;
  ProxyCount count;
  GroupShape shape{{}, {}, 2, 16, 4, 65536, {}};
  RankPod pod;
  Limits limits;
  Ring ring;
  FabricTransport transport;
  std::vector<RemoteKey> keys;
  std::unique_ptr<Epoch> epoch;
  uint32_t lost = 0;

  End(uint32_t rank, uint32_t world)
      : pod(make_pod(core, shape, world, rank, 1)),
        ring(0, pod.session->segments().slots(0), pod.session->segments().counters(0),
             pod.session->segments().results(0), 16),
        transport(fabric, 0, pod.session->shape(), 1, limits, count) {
    keys.push_back(transport.add_region(pod.session->regions()[0]));
    transport.begin_turn(kStartNs);
  }
  ~End() { core.close(); }

  SessionBlob blob(uint32_t rank) const {
    SessionBlob out = pod.session->describe();
    out.rank = rank;
    out.proxies = {{transport.address(), transport.mailbox(), keys}};
    return out;
  }
  void open(const End& peer) {
    const uint32_t world = pod.session->shape().world;
    EpochPlan plan{1, 1, 0, kTestLimitNs, {{0}, {}}, true};
    std::vector<SessionBlob> blobs(world);
    for (uint32_t rank = 0; rank < world; ++rank) {
      if (rank != 0) plan.nodes[1].push_back(rank);
      if (rank != pod.session->shape().rank) blobs[rank] = peer.blob(rank);
    }
    epoch = std::make_unique<Epoch>(plan, std::vector{pod.session}, std::move(blobs),
                                    std::make_shared<BarrierStats>(5), events);
    transport.open(*epoch);
  }

  size_t poll() {
    return transport.poll(
        64, [](const Link&, const ControlRecord&) -> const char* { return nullptr; },
        [this](uint32_t, const std::string&) { lost += 1; },
        [](int, const std::string& text) { FAIL(text); });
  }
  template <class Done>
  void poll_until(Done&& done) {
    for (int looks = 0; looks < 1'000'000 && !done(); ++looks) poll();
    REQUIRE(done());
  }
  // Whether the part was posted, in some tries: the provider refuses some at random.
  bool write(uint32_t rank, int tries = 100) {
    for (; tries > 0; --tries) {
      if (!transport.write({&ring, rank, 0, 0, 0, 0, 16}, nullptr).pending) continue;
      ring.add_part();
      return true;
    }
    return false;
  }
  void fill_mailbox(uint32_t rank) {
    for (uint64_t sent = 0; sent < kMailboxOrders;) {
      if (!transport.signal({&ring, rank, 0, sent + 1}).pending) continue;
      ring.add_part();
      sent += 1;
    }
    CHECK_FALSE(transport.signal({&ring, rank, 0, 1000}).pending);
    poll_until([this] { return transport.inflight() == 0; });
  }
  // How many were lost by then, beyond the bound for a peer without progress.
  uint32_t lost_later() {
    transport.begin_turn(kStartNs + 2 * limits.stall_ns);
    transport.watch([this](uint32_t, const std::string&) { lost += 1; });
    return lost;
  }
};

}  // namespace

TEST_CASE("operations that a masked rank holds are replaced, and count as under way no more") {
  constexpr uint32_t kWorld = 220, kSpare = kWorld - 1;
  End end(0, kWorld), peer(1, kWorld);
  end.open(peer);
  uint64_t before = 0;
  for (int same = 0; same < 20; same += 1) {
    for (uint32_t rank = 1; rank < kSpare; ++rank) (void)end.write(rank, 1);
    end.transport.flush();
    for (int idle = 0; idle < 3; ++idle) {
      while (end.poll() > 0) idle = 0;
    }
    if (end.transport.inflight() != before) same = 0;
    before = end.transport.inflight();
  }
  for (int i = 0; i < 8; ++i) (void)end.write(1, 1), end.transport.flush();
  REQUIRE_FALSE(end.write(kSpare));  // nothing is left of the operations
  for (uint32_t rank = 1; rank < kSpare; ++rank) end.transport.abandon(rank);
  CHECK(end.transport.inflight() == 0);
  CHECK(end.write(kSpare));
  end.poll_until([&end] { return end.transport.inflight() == 0; });
  CHECK(end.lost == 0);
}

TEST_CASE("a full mailbox makes its peer lost, but not once it gave credit or nobody tries again") {
  for (const bool credit : {false, true}) {
    End end(0, 2), peer(1, 2);
    end.open(peer);
    peer.open(end);
    end.fill_mailbox(1);
    if (credit) {
      peer.poll_until([&peer] { return peer.count.records_received.get() == kMailboxOrders; });
      for (int i = 0; i < 100; ++i) peer.transport.send_credits();
      end.poll_until([&end] { return end.count.records_received.get() > 0; });
      CHECK(end.lost_later() == 0);
    } else {
      CHECK(end.lost_later() == 1);
      end.transport.stop_trying();
      CHECK(end.lost_later() == 1);
    }
  }
}
