// The weights of a low-latency combine on their way to the ranks that multiply with them. Those of
// few tokens are words that say themselves which call they are of: nobody waits for a signal behind
// them. Others, and where ranks are masked or reached by agents only, are floats with a signal. For
// kernels, as dispatch.cuh.
#pragma once

#include "dispatch.cuh"

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

// To the ranks `first`, `first` + `step`, …: that what they get in this call is there.
EPF_DEVICE inline void say(const DeviceBuffer& buffer, const Here& here, uint64_t table,
                           uint32_t first, uint32_t step) {
  for (uint32_t to = first; to < buffer.shape.world; to += step) {
    if (here.masked[to] != 0 || here.proxied(to)) continue;
    const uint64_t place = place_of(buffer, table, here.sent, buffer.rank);
    platform::store_release(here.at<uint64_t>(to, place), word_of(here.sent, 0));
  }
}

// By a block: that the weights are there.
EPF_DEVICE inline void say_weights(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                   const CombineCall& call) {
  say(buffer, here, at.weight_words, platform::thread(), platform::threads());
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

// What a block's next tokens name, and where they were sent.
struct Named {
  uint32_t experts[kBatch][kMaxTopk];
  uint32_t ranks[kBatch][kMaxTopk];     // by copy
  uint32_t messages[kBatch][kMaxTopk];  // by copy
};

// Whether weights are words; alike on all ranks, which make a buffer with masks or none does.
EPF_DEVICE inline bool weights_are_words(const DeviceBuffer& buffer) {
  return buffer.mask == 0 && buffer.shape.tokens * buffer.shape.topk <= kQuickWeights;
}

// By a block, and seen by all of it after a barrier; thread (i, k) gets the k-th weight of the i-th
// token.
EPF_DEVICE inline float read_named(const Shape& shape, const CombineCall& call, uint32_t first,
                                   Named& named) {
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  if (first >= call.count || i >= batch_at(first, call.count)) return 0;
  const uint64_t token = first + i * platform::blocks();
  const int64_t expert = k < call.k ? call.topk[token * call.k + k] : -1;
  const int64_t sent = k < shape.copies() ? call.sent[token * shape.copies() + k] : -1;
  const float weight = k < call.k ? call.weights[token * call.k + k] : 0;
  const bool there = expert >= 0 && expert < shape.experts;
  named.experts[i][k] = there ? static_cast<uint32_t>(expert) : kNowhere;
  named.ranks[i][k] = sent < 0 ? kNowhere : static_cast<uint32_t>(sent >> 32);
  named.messages[i][k] = static_cast<uint32_t>(sent);
  return weight;
}

// Of the word of a message's first entry, of what a rank sends another in this call.
EPF_DEVICE inline uint64_t words_at(const Shape& shape, const Window& at, uint64_t call,
                                    uint32_t source, uint64_t message) {
  const uint64_t table = (call % kParities) * shape.world + source;
  return at.quick_weights + (table * kQuickWeights + message * shape.topk) * 8;
}

// By a block, each thread the weight that it has read.
EPF_DEVICE inline void send_word(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                 const CombineCall& call, uint32_t first, const Named& named,
                                 float weight) {
  const Shape& shape = buffer.shape;
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  if (i >= batch_at(first, call.count)) return;
  const uint32_t expert = named.experts[i][k];
  if (expert == kNowhere) return;
  const uint32_t to = expert / shape.local_experts();
  const uint32_t least = to * shape.local_experts();
  uint32_t experts[kMaxTopk];
#pragma unroll
  for (uint32_t j = 0; j < kMaxTopk; ++j) experts[j] = named.experts[i][j];
  uint32_t entry = 0;
  bool again = false;
#pragma unroll
  for (uint32_t j = 0; j < kMaxTopk; ++j) {
    bool counts = j < k && experts[j] - least < shape.local_experts();
    again = again || (j < k && experts[j] == expert);
#pragma unroll
    for (uint32_t before = 0; before < j; ++before) {
      counts = counts && experts[before] != experts[j];
    }
    entry += counts ? 1 : 0;
  }
  if (again || here.masked[to] != 0 || here.proxied(to)) return;
  for (uint32_t copy = 0; copy < shape.copies(); ++copy) {
    if (named.ranks[i][copy] != to) continue;
    const uint64_t place =
        words_at(shape, at, here.sent, buffer.rank, named.messages[i][copy]) + entry * 8;
    // Partner: await_weight().
    platform::store_relaxed(here.at<uint64_t>(to, place),
                            word_of(here.sent, bits_of_float(weight)));
  }
}

// By a block: the weights of all its tokens; `weight` and `named` as read for the first of them.
EPF_DEVICE inline void send_words(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                  const CombineCall& call, Named& named, float weight) {
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = platform::block(); first < call.count; first += step) {
    if (first != platform::block()) {
      platform::block_barrier();
      weight = read_named(buffer.shape, call, first, named);
      platform::block_barrier();
    }
    send_word(buffer, here, at, call, first, named, weight);
  }
}

// By one thread: the weight of a message's entry, once it is there; known to the block after a
// barrier is whether it failed.
EPF_DEVICE inline float await_weight(const DeviceBuffer& buffer, Here& here, const Window& at,
                                     uint32_t from, uint64_t message, uint32_t entry) {
  const uint64_t place = words_at(buffer.shape, at, here.sent, from, message) + entry * 8;
  const auto* word = here.at<uint64_t>(buffer.rank, place);
  uint64_t value = 0;
  const bool came = comes(buffer, from, [&] {
    value = platform::load_relaxed(word);
    return value >> 32 == word_of(here.sent, 0) >> 32;
  });
  if (!came) {
    fail(buffer, from, Awaited::kWeights);
    here.failed = 1;
  }
  return float_of_bits(static_cast<uint32_t>(value));
}

}  // namespace detail
}  // namespace epfabric
