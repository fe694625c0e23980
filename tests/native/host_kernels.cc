// The kernels of low_latency.cu as a CPU's compiler makes them, with the threads of host_grid.h.
#include "host_kernels.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#define EPF_HOST_PLATFORM "host_grid.h"
#define epfabric epfabric_on_host  // the core has the same names without these threads
#include "../../kernels/epfabric/cuda/low_latency.cu"

namespace host_kernels {
namespace {

namespace kernels = epfabric;

kernels::Shape shape_of(const Shape& s) { return {s.world, s.experts, s.tokens, s.hidden, s.topk}; }

struct alignas(128) Line {
  unsigned char bytes[128];
};

}  // namespace

uint64_t region_bytes(const Shape& shape) { return 2 * kernels::transit_of(shape_of(shape)).bytes; }

Batch::Batch(const Shape& shape) {
  const kernels::Shape s = shape_of(shape);
  const size_t local = s.local_experts(), rows = size_t{s.world} * s.tokens;
  tokens.resize(size_t{s.tokens} * s.hidden);
  topk.resize(size_t{s.tokens} * s.topk);
  weights.resize(topk.size());
  sent.resize(size_t{s.tokens} * s.copies());
  received.resize(local * rows * s.hidden);
  scales.resize(local * rows * s.hidden / 128);
  expert_counts.resize(local);
  source_tokens.resize(local * rows);
  ranges.resize(local * s.world);
  receipts.resize(rows * (kernels::kReceiptWords + 2 * s.topk));
  source_messages.resize(s.world);
  this->rows.resize(received.size());
  combined.resize(tokens.size());
  poison_outputs();
}

void Batch::poison_outputs() {
  const auto poison = [](auto& array) {
    std::memset(array.data(), 0xff, array.size() * sizeof(array[0]));
  };
  poison(sent), poison(received), poison(scales), poison(expert_counts), poison(source_tokens);
  poison(ranges), poison(receipts), poison(source_messages), poison(rows), poison(combined);
}

struct Rank::State {
  explicit State(const Setup& setup)
      : calls(setup.blocks),
        window((kernels::window_of(shape_of(setup.shape)).bytes + 127) / 128),
        windows(setup.shape.world),
        messages(setup.shape.world),
        counts(setup.shape.experts),
        masked(setup.shape.world),
        verdicts(kernels::kAwaitedKinds * setup.shape.world),
        heads(2 * setup.rings) {
    auto* pod = static_cast<unsigned char*>(setup.pod);
    const auto* agent = static_cast<const unsigned char*>(setup.agent);
    rank = {pod,
            agent,
            heads.data(),
            heads.data() + setup.rings,
            1,
            setup.rings,
            setup.depth,
            setup.signals,
            setup.shape.world,
            setup.rank,
            0};
    std::fill_n(heads.begin(), setup.rings, setup.first_ticket);
    const kernels::AbortWords aborts = rank.bounds().aborts;
    buffer = {windows.data(),
              &state,
              calls.data(),
              messages.data(),
              counts.data(),
              masked.data(),
              verdicts.data(),
              &alarm,
              aborts,
              setup.timeout_ns,
              shape_of(setup.shape),
              setup.rank,
              setup.mask,
              setup.first_signal,
              &rank,
              static_cast<unsigned char*>(setup.region),
              setup.region_offset,
              setup.first_ring,
              0};
    for (uint32_t i = 0; i < setup.blocks; ++i) {
      blocks.push_back(std::make_unique<kernels::platform::HostBlock>(i, setup.blocks));
    }
  }
  void launch(const std::function<void()>& kernel) {
    std::vector<std::thread> threads;
    for (const auto& block : blocks) threads.emplace_back([&] { block->run(kernel); });
    for (std::thread& thread : threads) thread.join();
  }

  kernels::BufferState state{};
  std::vector<kernels::BlockCalls> calls;
  std::vector<Line> window;
  std::vector<unsigned char*> windows;
  std::vector<uint64_t> messages, counts, masked, verdicts, heads;
  uint64_t alarm = 0;
  kernels::DeviceRank rank{};
  kernels::DeviceBuffer buffer{};
  std::vector<std::unique_ptr<kernels::platform::HostBlock>> blocks;
};

Rank::Rank(const Setup& setup) : state_(std::make_unique<State>(setup)) {}
Rank::~Rank() = default;

unsigned char* Rank::window() const { return state_->window[0].bytes; }
void Rank::connect(const std::vector<unsigned char*>& windows) {
  state_->windows = windows;
  const bool all = std::find(windows.begin(), windows.end(), nullptr) == windows.end();
  state_->buffer.agent = all ? nullptr : &state_->rank;
}
uint64_t Rank::failed() const { return kernels::platform::load_acquire(&state_->alarm); }
bool Rank::lost_ring() const {
  const auto row = state_->verdicts.end() - state_->buffer.shape.world;
  return std::any_of(row, state_->verdicts.end(), [](uint64_t word) { return word != 0; });
}
bool Rank::masked(uint32_t rank) const { return state_->masked[rank] != 0; }

void Rank::dispatch(Batch& batch, uint32_t phases) {
  const kernels::DispatchCall call{reinterpret_cast<const unsigned char*>(batch.tokens.data()),
                                   batch.topk.data(),
                                   batch.early ? batch.weights.data() : nullptr,
                                   batch.sent.data(),
                                   reinterpret_cast<unsigned char*>(batch.received.data()),
                                   batch.scales.data(),
                                   batch.expert_counts.data(),
                                   batch.source_tokens.data(),
                                   batch.ranges.data(),
                                   batch.receipts.data(),
                                   batch.source_messages.data(),
                                   nullptr,
                                   nullptr,
                                   batch.count,
                                   state_->buffer.shape.topk,
                                   phases,
                                   0,
                                   0};
  state_->buffer.windows = state_->windows.data();
  state_->launch([&] {
    batch.fp8 ? dispatch_fp8(state_->buffer, call) : dispatch_bf16(state_->buffer, call);
  });
}

void Rank::combine(Batch& batch, uint32_t phases) {
  const kernels::CombineCall call{reinterpret_cast<const unsigned char*>(batch.rows.data()),
                                  batch.topk.data(),
                                  batch.early ? nullptr : batch.weights.data(),
                                  batch.sent.data(),
                                  batch.receipts.data(),
                                  batch.source_messages.data(),
                                  reinterpret_cast<unsigned char*>(batch.combined.data()),
                                  nullptr,
                                  batch.count,
                                  state_->buffer.shape.topk,
                                  phases};
  state_->buffer.windows = state_->windows.data();
  state_->launch([&] { ::combine(state_->buffer, call); });
}

void Rank::settle() {
  // By one block, as it is launched.
  const std::function<void()> kernel = [&] { ::settle(state_->buffer); };
  kernels::platform::HostBlock block(0, 1);
  std::thread([&] { block.run(kernel); }).join();
}

void Rank::reshape(const Shape& shape) {
  settle();
  state_->buffer.shape = shape_of(shape);
}

}  // namespace host_kernels
