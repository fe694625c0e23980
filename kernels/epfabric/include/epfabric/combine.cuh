// Low-latency combine: a rank sums the rows that its experts made of a token, weighted, and sends
// one row; the token's rank sums these. Weights go first, since only the token's rank has them.
// For kernels, as dispatch.cuh; sums are in float and in an order that does not change.
#pragma once

#include "receive.cuh"
#include "weights.cuh"

namespace epfabric {
namespace detail {

// Messages that are answered together.
struct Summands {
  const Vector* rows[kBatch][kMaxTopk];
  float weights[kBatch][kMaxTopk];
  uint32_t entries[kBatch];
  Vector* targets[kBatch];
  uint64_t* words[kBatch];  // that say that a row is there, or nothing
};

// Tokens whose rows are summed together.
struct Rows {
  const Vector* rows[kBatch][kMaxTopk];
  uint32_t count[kBatch];
  uint32_t sources[kBatch][kMaxTopk];  // by copy: who makes the row, or kNowhere
};

// Whether each row has a word that says it is there; alike on all ranks.
EPF_DEVICE inline bool rows_have_words(const DeviceBuffer& buffer) {
  const Shape& shape = buffer.shape;
  return buffer.mask == 0 && shape.tokens * shape.copies() <= kQuickRows;
}

// In the window of a token's rank: where the word of one of its rows is.
EPF_DEVICE inline uint64_t row_word(const Shape& shape, const Window& at, uint64_t call,
                                    uint64_t token, uint64_t copy) {
  return at.quick_rows + ((call % kParities) * kQuickRows + token * shape.copies() + copy) * 8;
}

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

// By a block: which messages there are to answer; firsts as Arrivals has them. `messages`: of the
// caller's rank. Waits for the signals behind weights where there are.
EPF_DEVICE inline void count_messages(const DeviceBuffer& buffer, Here& here, const Window& at,
                                      const CombineCall& call, bool words, uint32_t messages,
                                      uint32_t* firsts) {
  const uint32_t from = platform::thread();
  if (from < buffer.shape.world) {
    if (call.weights != nullptr && (!words || here.proxied(from))) {
      await_word(buffer, here, at.weight_words, here.sent, from, Awaited::kWeights);
    }
    firsts[from + 1] = here.masked[from] != 0 ? 0 : messages;
  }
  add_up(firsts, buffer.shape.world);
}

// A message whose weights are words: the caller waits for that of one entry.
struct Awaiting {
  uint32_t from = kNowhere;
  uint64_t message = 0;
};

EPF_DEVICE inline Awaiting find_summands(const DeviceBuffer& buffer, const Here& here,
                                         const Window& at, const CombineCall& call, bool words,
                                         uint32_t first, uint32_t n, const uint32_t* firsts,
                                         Summands& in) {
  const Shape& shape = buffer.shape;
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  if (i >= n || k >= shape.topk) return {};
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
  const bool worded = words && !here.proxied(from);  // it may be on its way yet
  const float weight = worded ? 0.0f : weights[k];
  if (k < entries) {
    in.rows[i][k] = reinterpret_cast<const Vector*>(call.rows + row * shape.row_bytes());
    in.weights[i][k] = weight;
  }
  if (k == 0) {
    in.entries[i] = entries;
    in.targets[i] = reinterpret_cast<Vector*>(row_to(buffer, here, at, from, message, token, copy));
    in.words[i] = nullptr;
    if (rows_have_words(buffer) && !here.proxied(from)) {
      in.words[i] = here.at<uint64_t>(from, row_word(shape, at, here.sent, token, copy));
    }
  }
  if (!worded || k >= entries) return {};
  return {from, message};
}

// By a block; the same threads that found the entries.
EPF_DEVICE inline void await_words(const DeviceBuffer& buffer, Here& here, const Window& at,
                                   const Awaiting& awaiting, Summands& in) {
  if (awaiting.from == kNowhere) return;
  const uint32_t k = platform::thread() % kMaxTopk;
  in.weights[platform::thread() / kMaxTopk][k] =
      await_weight(buffer, here, at, awaiting.from, awaiting.message, k);
}

// Vector v of the sum of `count` rows, weighted by weight(k). Some are loaded before they are
// added, so that none waits for the one before.
template <typename Weight>
EPF_DEVICE Vector sum_of(const Vector* const* rows, uint32_t count, uint32_t v, Weight weight) {
  constexpr uint32_t kAtOnce = 4;
  float sums[8] = {};
  for (uint32_t first = 0; first < count; first += kAtOnce) {
    Vector vectors[kAtOnce];
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      if (first + k < count) vectors[k] = rows[first + k][v];
    }
#pragma unroll
    for (uint32_t k = 0; k < kAtOnce; ++k) {
      if (first + k < count) add(sums, vectors[k], weight(first + k));
    }
  }
  return rounded(sums);
}

EPF_DEVICE inline void sum_rows(const Shape& shape, uint32_t n, const Summands& in) {
  const uint32_t vectors = shape.hidden / 8;
  for (uint32_t unit = platform::thread(); unit < n * vectors; unit += platform::threads()) {
    const uint32_t i = unit / vectors;
    const uint32_t v = unit - i * vectors;
    const float* weights = in.weights[i];
    in.targets[i][v] =
        sum_of(in.rows[i], in.entries[i], v, [weights](uint32_t k) { return weights[k]; });
  }
}

// By a block, after a barrier with whoever wrote them: that the rows of a batch are there. By the
// threads that found them.
EPF_DEVICE inline void say_rows(const Here& here, uint32_t n, const Summands& in) {
  const uint32_t i = platform::thread() / kMaxTopk;
  if (platform::thread() % kMaxTopk != 0 || i >= n || in.words[i] == nullptr) return;
  platform::store_release(in.words[i], here.sent + 1);  // partner: await_rows()
}

// By a block's last warp, after a barrier with the others, which go on: what last_block() does, and
// then that all rows are there.
EPF_DEVICE inline void say_aside(const DeviceBuffer& buffer, const Here& here, const Window& at) {
  const uint32_t warp = platform::thread() / platform::kWarpSize;
  if (warp != platform::threads() / platform::kWarpSize - 1) return;
  bool last = false;
  if (platform::lane() == 0) {
    platform::fence_device();
    last = platform::fetch_add_device(&buffer.state->arrived_sums, 1) == platform::blocks() - 1;
    if (last) platform::store_device(&buffer.state->arrived_sums, 0);
    platform::fence_device();
  }
  if (platform::ballot(last) == 0) return;
  say(buffer, here, at.combine_words, platform::lane(), platform::kWarpSize);
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
    const bool answers = sent >= 0 && here.masked[sent >> 32] == 0;
    in.sources[i][copy] = answers ? static_cast<uint32_t>(sent >> 32) : kNowhere;
    if (!answers) continue;
    in.rows[i][count++] = reinterpret_cast<const Vector*>(
        row_from(buffer, here, at, static_cast<uint32_t>(sent >> 32), static_cast<uint32_t>(sent),
                 token, copy));
  }
  in.count[i] = count;
}

// By a block: waits for the words of rows; known to it after a barrier is whether it failed.
EPF_DEVICE inline void await_rows(const DeviceBuffer& buffer, Here& here, const Window& at,
                                  uint32_t first, uint32_t n, const Rows& in) {
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t copy = platform::thread() % kMaxTopk;
  if (i >= n || copy >= buffer.shape.copies()) return;
  const uint32_t from = in.sources[i][copy];
  if (from == kNowhere || here.proxied(from)) return;
  const uint64_t token = first + i * platform::blocks();
  const auto* word =
      here.at<uint64_t>(buffer.rank, row_word(buffer.shape, at, here.received, token, copy));
  const bool came =
      comes(buffer, from, [&] { return platform::load_acquire(word) == here.received + 1; });
  if (!came) {
    fail(buffer, from, Awaited::kRows);
    here.failed = 1;
  }
}

EPF_DEVICE inline void gather(const Shape& shape, const CombineCall& call, uint32_t first,
                              uint32_t n, const Rows& in) {
  const uint32_t vectors = shape.hidden / 8;
  for (uint32_t unit = platform::thread(); unit < n * vectors; unit += platform::threads()) {
    const uint32_t i = unit / vectors;
    const uint32_t v = unit - i * vectors;
    const uint64_t token = first + i * platform::blocks();
    reinterpret_cast<Vector*>(call.combined)[token * vectors + v] =
        sum_of(in.rows[i], in.count[i], v, [](uint32_t) { return 1.0f; });
  }
}

}  // namespace detail

// What a thread reads of a combine before its block knows whether the call may go on: by the time
// that is known it is there.
struct CombineStart {
  float weight = 0;
  uint32_t messages = 0;
};

// By a block; `named` is seen by all of it after a barrier.
EPF_DEVICE inline CombineStart combine_start(const DeviceBuffer& buffer, const CombineCall& call,
                                             detail::Named& named) {
  CombineStart start;
  const uint32_t from = platform::thread();
  if (from < buffer.shape.world) {
    start.messages = static_cast<uint32_t>(call.source_messages[from]);
  }
  if (call.weights != nullptr && detail::weights_are_words(buffer)) {
    start.weight = detail::read_named(buffer.shape, call, platform::block(), named);
  }
  return start;
}

EPF_DEVICE inline void combine_send(const DeviceBuffer& buffer, Here& here, const CombineCall& call,
                                    const CombineStart& start, detail::Named& named) {
  EPF_SHARED uint32_t firsts[kWindowRanks + 1];
  EPF_SHARED detail::Summands in;
  const Shape& shape = buffer.shape;
  const Window at = window_of(shape);
  const bool words = call.weights != nullptr && detail::weights_are_words(buffer);
  const bool signals = call.weights != nullptr && (!words || buffer.agent != nullptr);
  // The answers of the call before the last are there: its weights have been read.
  const bool free = here.received + kParities > here.sent;
  const bool waits_first = signals || !free || buffer.mask != 0;
  if (words && free) detail::send_words(buffer, here, at, call, named, start.weight);
  if (waits_first) {
    await_credits(buffer, here, at.combine_credits, here.sent, Awaited::kRowRoom);
    platform::block_barrier();
  }
  if (words && !free) detail::send_words(buffer, here, at, call, named, start.weight);
  if (signals) detail::exchange_weights(buffer, here, at, call);
  detail::count_messages(buffer, here, at, call, words, start.messages, firsts);
  if (!waits_first) {  // meanwhile: known to all after the next barrier
    await_credits(buffer, here, at.combine_credits, here.sent, Awaited::kRowRoom);
  }
  const uint32_t end = firsts[shape.world];
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = platform::block(); first < end; first += step) {
    const uint32_t n = detail::batch_at(first, end);
    const detail::Awaiting awaiting =
        detail::find_summands(buffer, here, at, call, words, first, n, firsts, in);
    platform::block_barrier();
    if (words) {
      detail::await_words(buffer, here, at, awaiting, in);
      platform::block_barrier();
    }
    detail::sum_rows(shape, n, in);
    platform::block_barrier();
    if (here.failed != 0) return;  // nobody hears that the rows are there
    detail::say_rows(here, n, in);
  }
  if (detail::rows_have_words(buffer) && buffer.agent == nullptr) {
    platform::block_barrier();
    detail::say_aside(buffer, here, at);
    return;
  }
  if (!last_block(&buffer.state->arrived_sums)) return;
  detail::say(buffer, here, at.combine_words, platform::thread(), platform::threads());
  detail::post_rows(buffer, here, firsts);
}

EPF_DEVICE inline void combine_receive(const DeviceBuffer& buffer, Here& here,
                                       const CombineCall& call) {
  EPF_SHARED detail::Rows in;
  const Shape& shape = buffer.shape;
  const Window at = window_of(shape);
  const uint32_t begin = platform::block();
  // Who wants to know how long a rank took waits for its signal.
  const bool words = detail::rows_have_words(buffer) && call.waits == nullptr;
  // Where ranks are masked it is known only then which rows there are.
  const bool early = buffer.mask == 0 && begin < call.count;
  if (early) {
    const uint32_t n = detail::batch_at(begin, call.count);
    detail::find_rows(buffer, here, at, call, begin, n, in);
  }
  for (uint32_t from = platform::thread(); from < shape.world; from += platform::threads()) {
    if (words && !here.proxied(from)) continue;
    await_word(buffer, here, at.combine_words, here.received, from, Awaited::kRows, call.waits);
  }
  platform::block_barrier();
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = begin; first < call.count; first += step) {
    const uint32_t n = detail::batch_at(first, call.count);
    if (!early || first != begin) {
      detail::find_rows(buffer, here, at, call, first, n, in);
      platform::block_barrier();
    }
    if (words) {
      detail::await_rows(buffer, here, at, first, n, in);
      platform::block_barrier();
      if (here.failed != 0) return;  // rows may be on their way yet
    }
    detail::gather(shape, call, first, n, in);
    platform::block_barrier();
  }
}

}  // namespace epfabric
