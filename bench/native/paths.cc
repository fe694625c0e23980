// The whole path, pods and agents being processes: barriers of 8 ranks of one node beside a pthread
// barrier of 8 processes, barriers of two agents, and writes from pod to pod over tcp;ofi_rxm, or
// barriers of two agents over the VM's first rail. Options: first, rounds, trips, what (0: local
// barrier, 1: remote barrier, 2: writes, 3: over verbs). Run by benches/barrier.py,
// benches/transport.py and benches/verbs_barrier.py.
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "agents.h"
#include "bench.h"

namespace epfabric::bench {
namespace {

constexpr const char* kPeer = "pthread_barrier";
constexpr auto kQuiet = std::chrono::milliseconds(1500);  // after that a proxy without work blocks

// What the pods' processes share with main().
struct Board {
  std::array<std::atomic<uint64_t>, 8> reached{};
  std::atomic<bool> good{true};
  pthread_barrier_t barrier;
  std::array<double, 1 << 16> samples;
};

Board* make_board(uint32_t parties) {
  void* mapped =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) give_up("mapping the board failed");
  Board* board = new (mapped) Board;
  pthread_barrierattr_t shared;
  ::pthread_barrierattr_init(&shared);
  ::pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  ::pthread_barrier_init(&board->barrier, &shared, parties);
  return board;
}

// Runs work(rank) in a process for each rank, all at once.
void in_processes(uint32_t ranks, const std::function<void(uint32_t)>& work) {
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    int fd;
    children.push_back(fork_with(fd, 120));
    if (children.back() != 0) continue;
    work(rank);
    ::_exit(0);
  }
  for (const pid_t child : children) {
    if (!ended_well(child)) give_up("a pod did not end well");
  }
}

// `meet()` many times; rank 0's times. Nobody may be let go before all have come.
void meet_often(Board& board, uint32_t rank, uint32_t ranks, uint64_t times,
                const std::function<void()>& meet) {
  const uint64_t before = board.reached[rank].load(std::memory_order_relaxed);
  for (uint64_t i = 0; i < times; ++i) {
    board.reached[rank].store(before + i + 1, std::memory_order_relaxed);
    const uint64_t begin = now_ns();
    meet();
    if (rank == 0) board.samples[i] = static_cast<double>(now_ns() - begin) * 1e-9;
    for (uint32_t other = 0; other < ranks; ++other) {
      if (board.reached[other].load(std::memory_order_relaxed) < before + i + 1) board.good = false;
    }
  }
}

struct Told {
  uint64_t first, rounds, trips;
};

void barriers(const std::vector<std::vector<uint32_t>>& nodes, uint32_t ranks, const Told& told,
              const char* name, const char* metric, bool beside, const Links& links = {}) {
  Agents agents(nodes, ranks, links);
  Board& board = *make_board(ranks);
  std::vector<Pod> pods;
  for (uint32_t rank = 0; rank < ranks; ++rank) pods.push_back(agents.pod(rank));
  uint64_t pushed = 0;
  const auto ours = [&](uint32_t rank) {
    Pod& pod = pods[rank];
    pod.resume(pushed);
    meet_often(board, rank, ranks, told.trips, [&] {
      pod.push(pack_barrier());
      pod.wait_all();
    });
  };
  const auto peer = [&](uint32_t rank) {
    meet_often(board, rank, ranks, told.trips, [&] { ::pthread_barrier_wait(&board.barrier); });
  };
  const auto print = [&](const char* side, uint64_t round) {
    print_samples(name, {metric, "s", false}, side, round, board.good,
                  std::span(board.samples).first(told.trips));
  };
  for (uint64_t round = told.first; round < told.first + told.rounds; ++round) {
    for (const bool own : {round % 2 == 0, round % 2 != 0}) {
      if (own) {
        in_processes(ranks, ours);
        pushed += told.trips;
        print(kOurs, round);
      } else if (beside) {
        in_processes(ranks, peer);
        print(kPeer, round);
      }
    }
  }
  agents.end();
}

// Two agents, whose other proxies have nothing to do but what a delegate asks of them.
void over_verbs(const char* name, uint32_t proxies, bool block, const Told& told) {
  Agents agents({{0}, {1}}, 2, {.verbs = true, .proxies = proxies});
  Board& board = *make_board(2);
  std::vector<Pod> pods{agents.pod(0), agents.pod(1)};
  uint64_t pushed = 0;
  for (uint64_t round = told.first; round < told.first + told.rounds; ++round) {
    for (Pod& pod : pods) pod.stir();
    if (block) std::this_thread::sleep_for(kQuiet);
    in_processes(2, [&](uint32_t rank) {
      pods[rank].resume(pushed);
      meet_often(board, rank, 2, told.trips, [&] {
        pods[rank].push(pack_barrier());
        pods[rank].wait_all();
      });
    });
    pushed += told.trips;
    print_samples(name, {"verbs_barrier_seconds", "s", false}, kOurs, round, board.good,
                  std::span(board.samples).first(told.trips));
  }
  agents.end();
}

// A pod writes, the other one sees the signal, looks at the payload and writes back.
void ping_pong(const Agents& agents, Pod& pod, Board& board, uint32_t rank, uint64_t bytes,
               const Told& told, uint64_t before) {
  std::byte* memory = agents.memory(rank);
  Slot slot{};
  if (!pack_write({1 - rank, 0, kRegionBytes / 32, static_cast<uint32_t>(bytes / 16), 0, 1}, slot))
    give_up("a write could not be packed");
  const auto send = [&](uint64_t stamp) {
    pod.wait_all();  // the source may be reused
    std::memcpy(memory, &stamp, 8);
    std::memcpy(memory + bytes - 8, &stamp, 8);
    pod.push(slot);
  };
  const auto see = [&](uint64_t stamp) {
    pod.wait_signal(1 - rank, stamp);
    const std::byte* target = memory + kRegionBytes / 2;
    if (std::memcmp(target, &stamp, 8) != 0 || std::memcmp(target + bytes - 8, &stamp, 8) != 0)
      board.good = false;
  };
  for (uint64_t i = 0; i < told.trips; ++i) {
    const uint64_t stamp = before + i + 1;
    const uint64_t begin = now_ns();
    if (rank == 0) send(stamp);
    see(stamp);
    if (rank == 1) send(stamp);
    if (rank == 0) board.samples[i] = static_cast<double>(now_ns() - begin) / 2e9;
  }
}

void writes(const Told& told) {
  Agents agents({{0}, {1}}, 2);
  Board& board = *make_board(2);
  std::vector<Pod> pods{agents.pod(0), agents.pod(1)};
  uint64_t before = 0;
  for (uint64_t round = told.first; round < told.first + told.rounds; ++round) {
    for (const uint64_t bytes : {uint64_t{16}, uint64_t{7168}}) {
      in_processes(2, [&](uint32_t rank) {
        pods[rank].resume(before);
        ping_pong(agents, pods[rank], board, rank, bytes, told, before);
      });
      before += told.trips;
      print_samples(bytes == 16 ? "16 B" : "7 KiB", {"path_latency_seconds", "s", false}, kOurs,
                    round, board.good, std::span(board.samples).first(told.trips));
    }
  }
  agents.end();
}

}  // namespace

int run(int count, char** values) {
  const Options options(count, values);
  const Told told{options.number("first", 0), options.number("rounds", 1),
                  std::min<uint64_t>(options.number("trips", 2000), 1 << 16)};
  switch (options.number("what", 0)) {
    case 0:
      barriers({{0, 1, 2, 3, 4, 5, 6, 7}}, 8, told, "8 ranks, 8 processes",
               "local_barrier_end_to_end_seconds", true);
      return 0;
    case 1:
      barriers({{0}, {1}}, 2, told, "2 agents", "remote_barrier_seconds", false);
      barriers({{0}, {1}}, 2, told, "2 agents, dissemination", "remote_barrier_seconds", false,
               {.dissemination = true});
      return 0;
    case 3:
      over_verbs("1 proxy", 1, false, told);
      over_verbs("4 proxies, 3 nap", 4, false, told);
      over_verbs("4 proxies, 3 block", 4, true, told);
      return 0;
    default:
      writes(told);
      return 0;
  }
}

}  // namespace epfabric::bench

int main(int count, char** values) { return epfabric::bench::run(count, values); }
