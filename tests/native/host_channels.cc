// The kernels of channels.cu as a CPU's compiler makes them, with the threads of host_grid.h.
#include "host_channels.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#define EPF_HOST_PLATFORM "host_grid.h"
#define epfabric epfabric_on_host  // the core has the same names without these threads
#include "../../kernels/epfabric/cuda/channels.cu"

namespace host_channels {
namespace {

namespace kernels = epfabric;

kernels::ChannelShape shape_of(const Shape& s) {
  return {s.world, s.channels, s.slots, s.topk, 0, s.row_bytes};
}

struct alignas(128) Line {
  unsigned char bytes[128];
};

template <typename Item>
unsigned char* bytes_of(std::vector<Item>& items) {
  return reinterpret_cast<unsigned char*>(items.data());
}

}  // namespace

uint64_t region_bytes(const Shape& shape) {
  return kernels::channel_transit(shape_of(shape)).bytes;
}
uint64_t window_bytes(const Shape& shape) { return kernels::channel_window_bytes(shape_of(shape)); }

Sent::Sent(const Shape& s, uint32_t all_experts, uint32_t tokens_here)
    : shape(s),
      experts(all_experts),
      count(tokens_here),
      tokens(size_t{count} * s.row_bytes / 2),
      topk(size_t{count} * s.topk),
      weights(topk.size()),
      in_rank(size_t{count} * s.world),
      rank_tokens(s.world),
      expert_tokens(all_experts),
      positions(in_rank.size(), 0x7f7f7f7f),
      channel_firsts(size_t{s.world} * s.channels, 0x7f7f7f7f),
      firsts(s.world + 1),
      combined(tokens.size()),
      combined_weights(topk.size()) {}

struct Rank::State {
  explicit State(const Setup& setup)
      : window((setup.window_bytes + 127) / 128),
        windows(setup.world),
        heads(2 * setup.rings),
        tallies(size_t{kernels::kChannelSignals} * kernels::kChannels * kernels::kChannelRanks) {
    auto* pod = static_cast<unsigned char*>(setup.pod);
    rank = {pod,
            static_cast<const unsigned char*>(setup.agent),
            heads.data(),
            heads.data() + setup.rings,
            1,
            setup.rings,
            setup.depth,
            setup.signals,
            setup.world,
            setup.rank,
            0};
    std::fill_n(heads.begin(), setup.rings, setup.first_ticket);
    buffer = {windows.data(),
              &state,
              &alarm,
              rank.bounds().aborts,
              setup.timeout_ns,
              {},
              setup.rank,
              setup.node_ranks,
              &rank,
              static_cast<unsigned char*>(setup.region),
              setup.region_offset,
              tallies.data(),
              setup.first_ring,
              setup.first_signal};
    const uint32_t count = (setup.world / setup.node_ranks + 1) * setup.channels;
    for (uint32_t i = 0; i < count; ++i) {
      blocks.push_back(std::make_unique<kernels::platform::HostBlock>(i, count));
    }
  }
  uint32_t parts() const { return buffer.nodes() + 1; }
  // By so many blocks, all at once.
  void launch(uint32_t count, const std::function<void()>& kernel) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] { blocks[i]->run(kernel); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void meet(const Shape& shape, const kernels::MeetCall& call) {
    buffer.shape = shape_of(shape);
    launch(1, [&] { channels_meet(buffer, call); });
  }

  kernels::ChannelState state{};
  std::vector<Line> window;
  std::vector<unsigned char*> windows;
  std::vector<uint64_t> heads, tallies;
  uint64_t alarm = 0;
  kernels::DeviceRank rank{};
  kernels::ChannelBuffer buffer{};
  std::vector<std::unique_ptr<kernels::platform::HostBlock>> blocks;
};

Rank::Rank(const Setup& setup) : state_(std::make_unique<State>(setup)) {}
Rank::~Rank() = default;

unsigned char* Rank::window() const { return state_->window[0].bytes; }
void Rank::connect(const std::vector<unsigned char*>& windows) {
  std::copy(windows.begin(), windows.end(), state_->windows.begin());
}
uint64_t Rank::failed() const { return kernels::platform::load_acquire(&state_->alarm); }
bool Rank::lost_ring() const { return state_->state.lost_ring != 0; }
void Rank::meet(const Shape& shape) {
  state_->meet(shape, {nullptr, nullptr, nullptr, nullptr, 0, 1});
}

Received Rank::dispatch(Sent& sent, uint32_t room, bool again) {
  Shape shape = sent.shape;
  if (again) shape.topk = 0;  // there are no experts then
  const uint32_t local = sent.experts / shape.world;
  Received received;
  received.weighted = !again;
  received.told.resize(2 + local);
  if (again) {
    meet(shape);
  } else {
    state_->meet(shape, {sent.rank_tokens.data(), sent.expert_tokens.data(), sent.firsts.data(),
                         received.told.data(), sent.experts, 1});
  }
  const auto rows = room != 0 ? room : static_cast<uint32_t>(sent.firsts[shape.world]);
  received.source_tokens.assign(rows, -1);
  received.rows.assign(size_t{rows} * shape.row_bytes / 2, 0xffff);
  received.topk.assign(size_t{rows} * shape.topk, 0x7f7f7f7f);
  received.weights.assign(received.topk.size(), -1);
  const kernels::ChannelDispatch call{bytes_of(sent.tokens),
                                      nullptr,
                                      again ? nullptr : sent.topk.data(),
                                      again ? nullptr : sent.weights.data(),
                                      sent.in_rank.data(),
                                      sent.firsts.data(),
                                      sent.positions.data(),
                                      sent.channel_firsts.data(),
                                      received.source_tokens.data(),
                                      bytes_of(received.rows),
                                      nullptr,
                                      received.topk.data(),
                                      again ? nullptr : received.weights.data(),
                                      sent.count,
                                      local,
                                      rows,
                                      1};
  state_->launch(state_->parts() * shape.channels,
                 [&] { channels_dispatch(state_->buffer, call); });
  return received;
}

void Rank::combine(Sent& sent, const Received& rows) {
  const bool weighted = rows.weighted;
  Shape shape = sent.shape;
  if (!weighted) shape.topk = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(rows.rows.data());
  const auto bias = [&](int i) {
    return sent.biases[i].empty() ? nullptr : bytes_of(sent.biases[i]);
  };
  std::fill(sent.combined.begin(), sent.combined.end(), uint16_t{0xffff});
  std::fill(sent.combined_weights.begin(), sent.combined_weights.end(), -1.0f);
  const kernels::ChannelCombine call{bytes,
                                     weighted ? rows.weights.data() : nullptr,
                                     sent.firsts.data(),
                                     sent.channel_firsts.data(),
                                     sent.positions.data(),
                                     rows.source_tokens.data(),
                                     {bias(0), bias(1)},
                                     bytes_of(sent.combined),
                                     weighted ? sent.combined_weights.data() : nullptr,
                                     sent.count,
                                     0};
  meet(shape);
  state_->launch(state_->parts() * shape.channels, [&] { channels_combine(state_->buffer, call); });
}

}  // namespace host_channels
