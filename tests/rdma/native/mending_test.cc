// Verbs connections over soft RoCE that break and are made anew: what came before is told of, what
// cannot be set up is tried again, and no queue pair stays behind.
#include <atomic>
#include <cerrno>
#include <thread>

#include "ends.h"

using namespace epfabric;
using namespace epfabric::agent;

namespace {

// Calls in place of libibverbs', while it lives.
struct Calls {
  static inline Ibverbs real{};
  static inline int pairs = 0;      // that there are
  static inline bool drop = false;  // what nobody polled goes with the queue pair
  static inline int refuse = -1;    // a change to this state fails, so many times
  static inline int refusals = 0;
  static inline std::atomic<int> looking{0}, looks{0};  // for ways, by other threads than the first
  static inline std::atomic<bool> answers{true};  // else it is looked for a way until it is so
  static inline std::thread::id first;

  Calls() {
    real = ibverbs();
    pairs = 0;
    drop = false;
    refuse = -1;
    looking = looks = 0;
    answers = true;
    first = std::this_thread::get_id();
    Ibverbs& now = table();
    now.create_ah = [](ibv_pd* domain, ibv_ah_attr* route) -> ibv_ah* {
      if (answers) return real.create_ah(domain, route);
      if (std::this_thread::get_id() == first) return nullptr;
      looking += 1;
      const uint64_t begin = platform::clock_ns();
      while (!answers && platform::clock_ns() - begin < kLimitNs) std::this_thread::yield();
      looks += 1;
      return nullptr;
    };
    now.create_qp = [](ibv_pd* domain, ibv_qp_init_attr* wanted) {
      ibv_qp* out = real.create_qp(domain, wanted);
      pairs += out != nullptr ? 1 : 0;
      return out;
    };
    now.destroy_qp = [](ibv_qp* pair) {
      ibv_wc unread;
      while (drop && pair->qp_type == IBV_QPT_RC && ::ibv_poll_cq(pair->recv_cq, 1, &unread) > 0) {
      }
      pairs -= 1;
      return real.destroy_qp(pair);
    };
    now.modify_qp = [](ibv_qp* pair, ibv_qp_attr* wanted, int mask) {
      if (wanted->qp_state == refuse && pair->qp_type == IBV_QPT_RC && refusals > 0) {
        refusals -= 1;
        return EIO;
      }
      return real.modify_qp(pair, wanted, mask);
    };
  }
  ~Calls() { table() = real; }
  Calls(const Calls&) = delete;

 private:
  static Ibverbs& table() { return const_cast<Ibverbs&>(ibverbs()); }
};

void write_one(Ends& ends, Probe& probe, uint32_t imm) {
  const Piece piece = ends.a.piece(0, 64, ends.b, 4096);
  REQUIRE(ends.a.endpoint.write_with_imm(ends.to_b, {&piece, 1}, imm, &probe) == 0);
}

}  // namespace

TEST_CASE("a connection that broke at one end is made anew by both, and says what was taken") {
  const uint32_t psn = 0xfffff8;  // below the wrap, which each connection comes to
  Ends ends(port_at('a', 0, psn), port_at('b', 0, psn));
  ends.link(0);
  for (uint32_t round = 0; round < 3; ++round) {
    CAPTURE(round);
    for (uint32_t i = 0; i < 20; ++i) {
      Probe probe;
      ends.a.memory[0] = static_cast<std::byte>(20 * round + i);
      write_one(ends, probe, i);
      ends.until([&] { return probe.error != -1 && ends.b.records.size() == 20 * round + i + 1; });
      CHECK(probe.error == 0);
      CHECK(ends.b.memory[4096] == ends.a.memory[0]);
    }
    End& broken = round % 2 == 0 ? ends.b : ends.a;
    broken.endpoint.disturb(round % 2 == 0 ? ends.to_a : ends.to_b, "the test breaks it");
    // The other end learns of it by the new connection's greeting.
    ends.mend();
    CHECK(ends.a.endpoint.told(ends.to_b).taken[0] == 20 * (round + 1));
    CHECK(ends.b.endpoint.told(ends.to_a).taken[0] == 0);
  }
}

TEST_CASE(
    "records that nobody polled before their connection broke do not go with its queue pair") {
  Calls calls;
  Ends ends;
  ends.link(0);
  std::array<Probe, 5> probes;
  for (uint32_t i = 0; i < probes.size(); ++i) write_one(ends, probes[i], i);
  const uint64_t begin = platform::clock_ns();
  while (probes.back().error == -1 && platform::clock_ns() - begin < kLimitNs) ends.a.poll();
  REQUIRE(probes.back().error == 0);  // the peer's NIC has them, and nobody at the peer
  CHECK(ends.b.records.empty());
  Calls::drop = true;
  ends.b.endpoint.disturb(ends.to_a, "the test breaks it");
  CHECK_FALSE(ends.b.endpoint.sever(ends.to_a));
  ends.mend();
  CHECK(ends.b.records.size() == probes.size());
  CHECK(ends.a.endpoint.told(ends.to_b).taken[0] == probes.size());
}

TEST_CASE("what is under way when a connection breaks fails once before it is ended") {
  Calls calls;
  Ends ends;
  ends.link(0);
  Probe first;
  write_one(ends, first, 0);
  ends.until([&] { return first.error == 0; });
  ends.b.endpoint.disturb(ends.to_a, "the test breaks it");
  while (!ends.b.endpoint.sever(ends.to_a)) ends.b.poll();
  std::array<Probe, 6> probes;
  for (Probe& probe : probes) write_one(ends, probe, 1);  // nobody answers
  ends.a.endpoint.disturb(ends.to_b, "the test breaks it here too");
  while (!ends.a.endpoint.sever(ends.to_b)) ends.a.poll();
  for (const Probe& probe : probes) {
    CHECK(probe.error == kBroken);
    CHECK(probe.detail == "the test breaks it here too");
  }
  CHECK(ends.b.records.size() == 1);
}

TEST_CASE("a queue pair that cannot be set up is given back, and the next one is tried") {
  for (const int state : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    CAPTURE(state);
    Calls calls;
    {
      Ends ends;
      ends.link(0);
      const int before = Calls::pairs;
      Calls::refuse = state;
      Calls::refusals = 3;
      ends.b.endpoint.disturb(ends.to_a, "the test breaks it");
      ends.mend();
      CHECK(Calls::refusals == 0);
      CHECK(Calls::pairs == before);
      Probe probe;
      write_one(ends, probe, 7);
      ends.until([&] { return probe.error != -1 && ends.b.records.size() == 1; });
      CHECK(probe.error == 0);
    }
    CHECK(Calls::pairs == 0);
  }
}

TEST_CASE("a connection that is killed while it is ended keeps its reason and leaves nothing") {
  Calls calls;
  {
    Ends ends;
    ends.link(0);
    std::array<Probe, 3> probes;
    for (Probe& probe : probes) write_one(ends, probe, 1);
    ends.a.endpoint.disturb(ends.to_b, "the test breaks it");
    CHECK_FALSE(ends.a.endpoint.sever(ends.to_b));
    ends.a.endpoint.kill(ends.to_b, "the test kills it");
    ends.until([&] {
      return std::all_of(probes.begin(), probes.end(),
                         [](const Probe& p) { return p.error != -1; });
    });
    CHECK(ends.a.endpoint.fault(ends.to_b) == "the test kills it");
    const Piece piece = ends.a.piece(0, 64, ends.b, 4096);
    CHECK(ends.a.endpoint.write(ends.to_b, {&piece, 1}, &probes[0]) == -ENOTCONN);
    ends.a.endpoint.meet();
    CHECK_FALSE(ends.a.endpoint.met(ends.to_b));
  }
  CHECK(Calls::pairs == 0);
}

TEST_CASE("a peer whose other NIC does not answer keeps nobody, and is looked for there once") {
  Calls calls;
  Ends ends;
  ends.link(0);
  Calls::answers = false;
  VerbsEndpoint& endpoint = ends.a.endpoint;
  const PeerIndex silent = endpoint.insert({ends.b.endpoint.address(), 1, 1});
  endpoint.rest(silent);
  endpoint.remake(silent, {1, {0}});
  uint32_t served = 0;
  const auto serve = [&] {
    endpoint.meet();
    Probe probe;
    write_one(ends, probe, served++);
    ends.until([&] { return probe.error == 0; });
  };
  for (int i = 0; i < 20; ++i) serve();
  CHECK(Calls::looks == 0);
  CHECK(endpoint.fault(silent) == "");
  Calls::answers = true;  // it says that there is no way
  const uint64_t begin = platform::clock_ns();
  while (endpoint.fault(silent).empty() && platform::clock_ns() - begin < kLimitNs) serve();
  CHECK(endpoint.fault(silent).find("ra0 knows no way to the peer") != std::string::npos);
  for (int i = 0; i < 20; ++i) serve();
  CHECK(Calls::looking == 1);
  CHECK(endpoint.fault(ends.to_b) == "");
  CHECK(Calls::pairs == 4);  // two of datagrams and the link's
}
