// Low-latency combine: a rank sums the rows that its experts made of a token, weighted, and sends
// one row; the token's rank sums these. Weights go first, since only the token's rank has them.
// For kernels, as dispatch.cuh; sums are in float and in an order that does not change.
#pragma once

#include "receive.cuh"

namespace epfabric {

struct CombineCall {
  const unsigned char* rows;       // [local experts, world × tokens, hidden] bfloat16
  const int64_t* topk;             // [count, k], as dispatched
  const float* weights;            // [count, k]; nothing: those that the dispatch had
  const int64_t* sent;             // of the dispatch
  const int32_t* receipts;         // of the dispatch
  const int32_t* source_messages;  // of the dispatch
  unsigned char* combined;         // [count, hidden] bfloat16
  uint64_t* waits;                 // [world] to which ns of waiting are added, or nothing
  uint32_t count, k, phases;
};

inline constexpr uint32_t kWeightsOfABlock = 2;  // of each thread, at most

namespace detail {

struct Summands {
  const Vector* rows[kBatch][kMaxTopk];
  float weights[kBatch][kMaxTopk];
  uint32_t entries[kBatch];
  Vector* targets[kBatch];
};

struct Rows {
  const Vector* rows[kBatch][kMaxTopk];
  uint32_t count[kBatch];
};

EPF_DEVICE inline void add(float (&sums)[8], const Vector& vector, float weight) {
  for (uint32_t w = 0; w < 4; ++w) {
    sums[2 * w] += weight * lower_bf16(vector.words[w]);
    sums[2 * w + 1] += weight * upper_bf16(vector.words[w]);
  }
}

EPF_DEVICE inline Vector rounded(const float (&sums)[8]) {
  Vector vector;
  for (uint32_t w = 0; w < 4; ++w) {
    vector.words[w] = platform::bf16_pair(sums[2 * w], sums[2 * w + 1]);
  }
  return vector;
}

// The expert that the token names k-th, or kNowhere; also where it has named it before.
EPF_DEVICE inline uint32_t expert_of(const Shape& shape, const CombineCall& call, uint64_t token,
                                     uint32_t k) {
  const int64_t* topk = call.topk + token * call.k;
  if (topk[k] < 0 || topk[k] >= shape.experts) return kNowhere;
  for (uint32_t other = 0; other < k; ++other) {
    if (topk[other] == topk[k]) return kNowhere;
  }
  return static_cast<uint32_t>(topk[k]);
}

// By `blocks` blocks: each weight to the rank that multiplies with it, in the order of the
// message's entries.
EPF_DEVICE inline void send_weights(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                    const CombineCall& call, uint32_t blocks) {
  const Shape& shape = buffer.shape;
  const uint32_t step = blocks * platform::threads();
  const uint32_t begin = platform::block() * platform::threads() + platform::thread();
  if (platform::block() >= blocks) return;
  for (uint32_t unit = begin; unit < call.count * call.k; unit += step) {
    const uint64_t token = unit / call.k;
    const uint32_t k = unit % call.k;
    const uint32_t expert = expert_of(shape, call, token, k);
    if (expert == kNowhere) continue;
    const uint32_t to = expert / shape.local_experts();
    uint32_t entry = 0;
    for (uint32_t other = 0; other < k; ++other) {
      const uint32_t before = expert_of(shape, call, token, other);
      entry += before != kNowhere && before / shape.local_experts() == to;
    }
    for (uint32_t copy = 0; copy < shape.copies(); ++copy) {
      const int64_t sent = call.sent[token * shape.copies() + copy];
      if (sent < 0 || static_cast<uint32_t>(sent >> 32) != to || here.masked[to] != 0) continue;
      const uint64_t place = uint64_t{static_cast<uint32_t>(sent)} * shape.topk + entry;
      weights_to(buffer, here, at, to)[place] = call.weights[token * call.k + k];
    }
  }
}

EPF_DEVICE inline void say(const DeviceBuffer& buffer, const Here& here, uint64_t table) {
  for (uint32_t to = platform::thread(); to < buffer.shape.world; to += platform::threads()) {
    if (here.masked[to] != 0 || here.proxied(to)) continue;
    const uint64_t place = place_of(buffer, table, here.sent, buffer.rank);
    platform::store_release(here.at<uint64_t>(to, place), word_of(here.sent, 0));
  }
}

// By a block: that the weights are there.
EPF_DEVICE inline void say_weights(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                   const CombineCall& call) {
  say(buffer, here, at.weight_words);
  post_weights(buffer, here, call.count);
}

// By the grid, or where there are few by its first block, which need not wait for the others then.
EPF_DEVICE inline void exchange_weights(const DeviceBuffer& buffer, const Here& here,
                                        const Window& at, const CombineCall& call) {
  if (call.count * call.k <= kWeightsOfABlock * platform::threads()) {
    send_weights(buffer, here, at, call, 1);
    platform::block_barrier();
    if (platform::block() == 0) say_weights(buffer, here, at, call);
  } else {
    send_weights(buffer, here, at, call, platform::blocks());
    if (last_block(&buffer.state->arrived_weights)) say_weights(buffer, here, at, call);
  }
}

// By a block: which messages there are to answer; firsts as Arrivals has them. Waits for weights
// where they come now.
EPF_DEVICE inline void await_weights(const DeviceBuffer& buffer, Here& here, const Window& at,
                                     const CombineCall& call, uint32_t* firsts) {
  for (uint32_t from = platform::thread(); from < buffer.shape.world; from += platform::threads()) {
    const uint32_t messages = static_cast<uint32_t>(call.source_messages[from]);
    if (call.weights != nullptr) {
      await_word(buffer, here, at.weight_words, here.sent, from, Awaited::kWeights);
    }
    firsts[from + 1] = here.masked[from] != 0 ? 0 : messages;
  }
  add_up(firsts, buffer.shape.world);
}

EPF_DEVICE inline void find_summands(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                     const CombineCall& call, uint32_t first, uint32_t n,
                                     const uint32_t* firsts, Summands& in) {
  const Shape& shape = buffer.shape;
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  if (i >= n || k >= shape.topk) return;
  const uint32_t unit = first + i * platform::blocks();
  const uint32_t from = source_of(firsts, shape.world, unit);
  const uint64_t message = unit - firsts[from];
  const int32_t* receipt =
      call.receipts + (uint64_t{from} * shape.tokens + message) * (kReceiptWords + 2 * shape.topk);
  const float* weights = call.weights != nullptr
                             ? weights_from(buffer, here, at, from) + message * shape.topk
                             : reinterpret_cast<const float*>(receipt + kReceiptWords + shape.topk);
  // All at once, whether there is a k-th entry or not.
  const uint64_t token = static_cast<uint32_t>(receipt[0]);
  const uint64_t copy = static_cast<uint32_t>(receipt[1]);
  const uint32_t entries = static_cast<uint32_t>(receipt[2]);
  const uint64_t row = static_cast<uint32_t>(receipt[kReceiptWords + k]);
  const float weight = weights[k];
  if (k < entries) {
    in.rows[i][k] = reinterpret_cast<const Vector*>(call.rows + row * shape.row_bytes());
    in.weights[i][k] = weight;
  }
  if (k != 0) return;
  in.entries[i] = entries;
  in.targets[i] = reinterpret_cast<Vector*>(row_to(buffer, here, at, from, message, token, copy));
}

EPF_DEVICE inline void sum_rows(const Shape& shape, uint32_t n, const Summands& in) {
  const uint32_t vectors = shape.hidden / 8;
  for (uint32_t unit = platform::thread(); unit < n * vectors; unit += platform::threads()) {
    const uint32_t i = unit / vectors;
    const uint32_t v = unit - i * vectors;
    float sums[8] = {};
    const uint32_t entries = in.entries[i];
#pragma unroll 4
    for (uint32_t k = 0; k < entries; ++k) add(sums, in.rows[i][k][v], in.weights[i][k]);
    in.targets[i][v] = rounded(sums);
  }
}

EPF_DEVICE inline void find_rows(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                 const CombineCall& call, uint32_t first, uint32_t n, Rows& in) {
  const Shape& shape = buffer.shape;
  const uint32_t i = platform::thread();
  if (i >= n) return;
  const uint64_t token = first + i * platform::blocks();
  uint32_t count = 0;
  for (uint32_t copy = 0; copy < shape.copies(); ++copy) {
    const int64_t sent = call.sent[token * shape.copies() + copy];
    if (sent < 0 || here.masked[sent >> 32] != 0) continue;
    in.rows[i][count++] = reinterpret_cast<const Vector*>(
        row_from(buffer, here, at, static_cast<uint32_t>(sent >> 32), static_cast<uint32_t>(sent),
                 token, copy));
  }
  in.count[i] = count;
}

EPF_DEVICE inline void gather(const Shape& shape, const CombineCall& call, uint32_t first,
                              uint32_t n, const Rows& in) {
  const uint32_t vectors = shape.hidden / 8;
  for (uint32_t unit = platform::thread(); unit < n * vectors; unit += platform::threads()) {
    const uint32_t i = unit / vectors;
    const uint32_t v = unit - i * vectors;
    float sums[8] = {};
#pragma unroll 4
    for (uint32_t copy = 0; copy < in.count[i]; ++copy) add(sums, in.rows[i][copy][v], 1.0f);
    const uint64_t token = first + i * platform::blocks();
    reinterpret_cast<Vector*>(call.combined)[token * vectors + v] = rounded(sums);
  }
}

}  // namespace detail

EPF_DEVICE inline void combine_send(const DeviceBuffer& buffer, Here& here,
                                    const CombineCall& call) {
  EPF_SHARED uint32_t firsts[kWindowRanks + 1];
  EPF_SHARED detail::Summands in;
  const Shape& shape = buffer.shape;
  const Window at = window_of(shape);
  await_credits(buffer, here, at.combine_credits, here.sent, Awaited::kRowRoom);
  if (call.weights != nullptr) detail::exchange_weights(buffer, here, at, call);
  detail::await_weights(buffer, here, at, call, firsts);
  const uint32_t end = firsts[shape.world];
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = platform::block(); first < end; first += step) {
    const uint32_t n = detail::batch_at(first, end);
    detail::find_summands(buffer, here, at, call, first, n, firsts, in);
    platform::block_barrier();
    detail::sum_rows(shape, n, in);
    platform::block_barrier();
  }
  if (!last_block(&buffer.state->arrived_sums)) return;
  detail::say(buffer, here, at.combine_words);
  detail::post_rows(buffer, here, firsts);
}

EPF_DEVICE inline void combine_receive(const DeviceBuffer& buffer, Here& here,
                                       const CombineCall& call) {
  EPF_SHARED detail::Rows in;
  const Shape& shape = buffer.shape;
  const Window at = window_of(shape);
  for (uint32_t from = platform::thread(); from < shape.world; from += platform::threads()) {
    await_word(buffer, here, at.combine_words, here.received, from, Awaited::kRows, call.waits);
  }
  platform::block_barrier();
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = platform::block(); first < call.count; first += step) {
    const uint32_t n = detail::batch_at(first, call.count);
    detail::find_rows(buffer, here, at, call, first, n, in);
    platform::block_barrier();
    detail::gather(shape, call, first, n, in);
    platform::block_barrier();
  }
}

}  // namespace epfabric
