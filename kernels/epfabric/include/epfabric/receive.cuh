// The receiving half of a low-latency dispatch: waits for every rank's messages and lays their
// tokens out by expert, in the order of the source ranks. For kernels, as dispatch.cuh.
#pragma once

#include "dispatch.cuh"

namespace epfabric {
namespace detail {

// What has come for a call, by source rank.
struct Arrivals {
  uint32_t firsts[kWindowRanks + 1];  // of each source's messages, counted over all
  uint32_t rows[kWindowExperts];      // [source][local expert]: the first row of that source there
};

struct Incoming {
  const unsigned char* payloads[kBatch];
  uint32_t entries[kBatch];
  uint32_t rows[kBatch][kMaxTopk];
};

// The source of message `unit`.
EPF_DEVICE inline uint32_t source_of(const uint32_t* firsts, uint32_t world, uint32_t unit) {
  uint32_t low = 0;
  for (uint32_t high = world; high - low > 1;) {
    const uint32_t middle = (low + high) / 2;
    if (firsts[middle] <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// By a block with a thread for each rank: turns counts of each rank, in firsts[1 + rank], into
// places.
EPF_DEVICE inline void add_up(uint32_t* firsts, uint32_t world) {
  const uint32_t me = platform::thread();
  if (me == 0) firsts[0] = 0;
  platform::block_barrier();
  for (uint32_t step = 1; step < world; step *= 2) {
    const uint32_t before = me < world && me >= step ? firsts[me + 1 - step] : 0;
    platform::block_barrier();
    if (before != 0) firsts[me + 1] += before;
    platform::block_barrier();
  }
}

// By a block: waits for all sources. Block 0 tells the caller what came.
EPF_DEVICE inline void await_tokens(const DeviceBuffer& buffer, Here& here, const Window& at,
                                    const DispatchCall& call, Arrivals& in) {
  const Shape& shape = buffer.shape;
  const uint32_t local = shape.local_experts();
  const bool tells = platform::block() == 0;
  for (uint32_t from = platform::thread(); from < shape.world; from += platform::threads()) {
    const uint32_t count = await_word(buffer, here, at.dispatch_words, here.received, from,
                                      Awaited::kTokens, call.waits);
    in.firsts[from + 1] = count;
    if (tells) call.source_messages[from] = static_cast<int32_t>(count);
  }
  add_up(in.firsts, shape.world);
  for (uint32_t expert = platform::thread(); expert < local; expert += platform::threads()) {
    uint32_t row = 0;
    for (uint32_t from = 0; from < shape.world; ++from) {
      const bool came = in.firsts[from + 1] != in.firsts[from];
      const uint32_t count = came ? counts_from(buffer, here, at, from)[expert] : 0;
      in.rows[from * local + expert] = row;
      if (tells) {
        call.ranges[uint64_t{expert} * shape.world + from] =
            static_cast<int64_t>(uint64_t{row} << 32 | count);
      }
      row += count;
    }
    if (!tells) continue;
    call.expert_counts[expert] = static_cast<int32_t>(row);
    if (call.sums != nullptr) call.sums[expert] += static_cast<int32_t>(row);
  }
  platform::block_barrier();
}

// By a block: reads the headers of `n` messages, says where their tokens go.
EPF_DEVICE inline void read_headers(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                    const DispatchCall& call, uint32_t first, uint32_t n, bool fp8,
                                    const Arrivals& arrivals, Incoming& in) {
  const Shape& shape = buffer.shape;
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  if (i >= n || k >= shape.topk) return;
  const uint32_t unit = first + i * platform::blocks();
  const uint32_t from = source_of(arrivals.firsts, shape.world, unit);
  const uint64_t message = unit - arrivals.firsts[from];
  const unsigned char* at_message =
      messages_from(buffer, here, at, from) + message * shape.message_bytes(fp8);
  // All at once, whether there is a k-th entry or not.
  const auto header = *reinterpret_cast<const MessageHeader*>(at_message);
  const auto* entries = reinterpret_cast<const uint32_t*>(at_message + sizeof(MessageHeader));
  const uint32_t entry = entries[k];
  const auto weight = reinterpret_cast<const int32_t*>(at_message + shape.weights_offset())[k];
  int32_t* receipt =
      call.receipts + (uint64_t{from} * shape.tokens + message) * (kReceiptWords + 2 * shape.topk);
  if (k < header.entries) {
    const uint32_t expert = entry_expert(entry);
    const uint32_t row = expert * shape.world * shape.tokens +
                         arrivals.rows[from * shape.local_experts() + expert] + entry_index(entry);
    in.rows[i][k] = row;
    call.source_tokens[row] = static_cast<int32_t>(header.token);
    receipt[kReceiptWords + k] = static_cast<int32_t>(row);
    receipt[kReceiptWords + shape.topk + k] = weight;
  }
  if (k != 0) return;
  in.entries[i] = header.entries;
  in.payloads[i] = at_message + shape.header_bytes();
  receipt[0] = static_cast<int32_t>(header.token);
  receipt[1] = static_cast<int32_t>(header.copy);
  receipt[2] = static_cast<int32_t>(header.entries);
}

EPF_DEVICE inline void expand(const DispatchCall& call, uint32_t row_bytes, uint32_t n,
                              const Incoming& in) {
  const uint32_t vectors = row_bytes / 16;
  for (uint32_t unit = platform::thread(); unit < n * vectors; unit += platform::threads()) {
    const uint32_t i = unit / vectors;
    const uint32_t v = unit - i * vectors;
    const Vector vector = reinterpret_cast<const Vector*>(in.payloads[i])[v];
    for (uint32_t k = 0; k < in.entries[i]; ++k) {
      reinterpret_cast<Vector*>(call.received)[uint64_t{in.rows[i][k]} * vectors + v] = vector;
    }
  }
}

// Scales lie by channel and then by row, as matrix products on the GPU want them.
EPF_DEVICE inline void expand_scales(const Shape& shape, const DispatchCall& call, uint32_t n,
                                     const Incoming& in) {
  const uint32_t groups = shape.hidden / kScaleChannels;
  const uint64_t rows = uint64_t{shape.world} * shape.tokens;
  for (uint32_t unit = platform::thread(); unit < n * groups; unit += platform::threads()) {
    const uint32_t i = unit / groups;
    const uint32_t group = unit - i * groups;
    const float scale = reinterpret_cast<const float*>(in.payloads[i] + shape.hidden)[group];
    for (uint32_t k = 0; k < in.entries[i]; ++k) {
      const uint64_t expert = in.rows[i][k] / rows;
      const uint64_t row = in.rows[i][k] % rows;
      if (call.byte_scales != 0) {
        const uint64_t word = (expert * (groups / 4) + group / 4) * rows + row;
        static_cast<uint8_t*>(call.scales)[word * 4 + group % 4] =
            static_cast<uint8_t>(bits_of_float(scale) >> 23);
      } else {
        static_cast<float*>(call.scales)[(expert * groups + group) * rows + row] = scale;
      }
    }
  }
}

}  // namespace detail

template <bool kFp8>
EPF_DEVICE void dispatch_receive(const DeviceBuffer& buffer, Here& here, const DispatchCall& call) {
  EPF_SHARED detail::Arrivals arrivals;
  EPF_SHARED detail::Incoming in;
  const Shape& shape = buffer.shape;
  const Window at = window_of(shape);
  detail::await_tokens(buffer, here, at, call, arrivals);
  const uint32_t end = arrivals.firsts[shape.world];
  const uint32_t row_bytes = kFp8 ? shape.hidden : shape.hidden * 2;
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = platform::block(); first < end; first += step) {
    const uint32_t n = detail::batch_at(first, end);
    detail::read_headers(buffer, here, at, call, first, n, kFp8, arrivals, in);
    platform::block_barrier();
    detail::expand(call, row_bytes, n, in);
    if constexpr (kFp8) detail::expand_scales(shape, call, n, in);
    platform::block_barrier();
  }
}

}  // namespace epfabric
