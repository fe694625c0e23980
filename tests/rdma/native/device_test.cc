// NICs of soft RoCE that fail as devices: from some point on they complete nothing, or their queues
// cannot be polled. That is played at the seam to libibverbs; what it does to an endpoint is real.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "mended.h"
#include "rounds.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

enum class Polled : uint8_t { kAll, kNothing, kError };

// Calls in place of libibverbs', while it lives; of one device.
struct Failing {
  static inline Ibverbs real{};
  static inline int (*real_poll)(ibv_cq*, int, ibv_wc*) = nullptr;
  static inline std::string device;
  static inline std::atomic<Polled> polled{Polled::kAll};
  static inline std::atomic<bool> tells{false};  // that it failed, once
  static inline std::atomic<bool> ends{false};   // with the next queue pair that is to fail
  static inline std::atomic<int> refused{0};     // queue pairs that it will not destroy at first
  static inline std::atomic<int> completed{0};

  explicit Failing(const std::string& name) {
    real = ibverbs();
    device = name;
    polled = Polled::kAll;
    tells = ends = false;
    refused = completed = 0;
    Ibverbs& now = const_cast<Ibverbs&>(ibverbs());
    now.create_cq = [](ibv_context* context, int size, void* own, ibv_comp_channel* channel,
                       int vector) {
      if (context->ops.poll_cq != poll) real_poll = context->ops.poll_cq;
      context->ops.poll_cq = poll;
      return real.create_cq(context, size, own, channel, vector);
    };
    now.get_async_event = [](ibv_context* context, ibv_async_event* out) {
      if (!is_of(context) || !tells.exchange(false)) return real.get_async_event(context, out);
      *out = {};
      out->event_type = IBV_EVENT_DEVICE_FATAL;
      return 0;
    };
    now.modify_qp = [](ibv_qp* pair, ibv_qp_attr* wanted, int mask) {
      if (is_of(pair->context) && wanted->qp_state == IBV_QPS_ERR && ends.exchange(false))
        polled = Polled::kError;
      return real.modify_qp(pair, wanted, mask);
    };
    now.destroy_qp = [](ibv_qp* pair) {
      if (!is_of(pair->context) || refused == 0) return real.destroy_qp(pair);
      refused -= 1;
      return EIO;
    };
  }
  ~Failing() { const_cast<Ibverbs&>(ibverbs()) = real; }
  Failing(const Failing&) = delete;

 private:
  static bool is_of(const ibv_context* context) { return context->device->name == device; }
  static int poll(ibv_cq* queue, int most, ibv_wc* out) {
    const bool own = is_of(queue->context);
    if (own && polled == Polled::kNothing) return 0;
    if (own && polled == Polled::kError) return -1;
    const int got = real_poll(queue, most, out);
    if (own && got > 0) completed += got;
    return got;
  }
};

void write_all(Ends& ends, std::span<Probe> probes) {
  const Piece piece = ends.a.piece(0, 64, ends.b, 4096);
  for (Probe& probe : probes)
    REQUIRE(ends.a.endpoint.write_with_imm(ends.to_b, {&piece, 1}, 7, &probe) == 0);
}
// Until the end is severed.
void sever(Ends& ends) {
  const uint64_t begin = platform::clock_ns();
  while (!ends.a.endpoint.sever(ends.to_b)) {
    REQUIRE(platform::clock_ns() - begin < kLimitNs);
    std::array<Completion, 8> out;
    ends.a.endpoint.poll(out.data(), out.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("what a device that failed completes too late is nobody's, and its peers are faulty") {
  for (const Polled how : {Polled::kNothing, Polled::kError}) {
    for (const bool tells : {true, false}) {
      CAPTURE(int(how));
      CAPTURE(tells);
      Failing failing("ra0");
      Ends ends;
      ends.link(0);
      const PeerIndex first = ends.to_b;
      ends.link(1);
      std::array<Probe, 5> probes;
      Failing::polled = how;
      Failing::tells = tells;
      Failing::refused = 2;
      write_all(ends, probes);
      ends.until([&] { return ends.b.records.size() == probes.size() || how == Polled::kError; });
      sever(ends);
      CHECK(Failing::refused == 0);
      CHECK(ends.a.endpoint.gone());
      for (const PeerIndex peer : {first, ends.to_b}) CHECK(ends.a.endpoint.fault(peer) != "");
      Failing::polled = Polled::kAll;
      const int before = Failing::completed;
      while (ends.a.poll() > 0) {
      }
      CHECK(Failing::completed > before);
      for (const Probe& probe : probes) CHECK(probe.error == -1);
      ends.a.endpoint.remake(ends.to_b, {});
      ends.a.endpoint.meet();
      CHECK_FALSE(ends.a.endpoint.met(ends.to_b));
      CHECK(ends.a.endpoint.fault(ends.a.endpoint.insert({ends.b.endpoint.address(), 2, 2})) != "");
    }
  }
}

// Longer than a device may say nothing; what it completed meanwhile lies in the queue.
TEST_CASE("a process that stood still while it severed takes no device for failed") {
  constexpr std::chrono::milliseconds kStill{6200}, kSpent{300};
  Ends before, behind(port_at('a', 1), port_at('b', 1));  // its last WR was posted
  std::array<std::array<Probe, 5>, 2> probes;
  for (Ends* ends : {&before, &behind}) {
    ends->link(0);
    write_all(*ends, probes[ends == &before ? 0 : 1]);
    CHECK_FALSE(ends->a.endpoint.sever(ends->to_b));
  }
  const auto post_last = [](Ends& ends) {
    ends.a.poll();
    (void)ends.a.endpoint.sever(ends.to_b);
  };
  std::this_thread::sleep_for(kSpent);
  post_last(behind);
  std::this_thread::sleep_for(kStill);
  post_last(before);
  CHECK_FALSE(behind.a.endpoint.sever(behind.to_b));
  for (Ends* ends : {&before, &behind}) {
    ends->until([&] { return ends->a.endpoint.sever(ends->to_b); });
    CHECK_FALSE(ends->a.endpoint.gone());
  }
  for (const auto& each : probes) {
    for (const Probe& probe : each) CHECK(probe.error != -1);
  }
}

// Its rail goes, and as the lines over it are severed its queue cannot be polled any more.
TEST_CASE("a striped link goes on over its other NIC when one fails as a device") {
  Failing failing("ra0");
  GroupShape shape = on_rail(1);
  shape.settings.stripes = 2;
  shape.settings.limits.stall_ns = kTestLimitNs;
  shape.ports = {{port_at('a', 0), port_at('a', 1)}, {port_at('b', 0), port_at('b', 1)}};
  CoreGroup group(shape);
  Play rounds(group);
  CHECK(rounds.until(2));
  Failing::ends = true;
  CHECK(std::system("ip link set va0 down") == 0);
  CHECK(rounds.until(3, [&] { return mended_by(group).ends >= 2; }));
  CHECK(Failing::polled == Polled::kError);
  CHECK(std::system(kUp) == 0);
  const uint64_t before = sent_packets("ra0");
  CHECK(rounds.until(3));
  CHECK(sent_packets("ra0") == before);
  rounds.end();
  for (const auto& core : group.cores) CHECK(core->failure(1) == "");
  group.close();
}
