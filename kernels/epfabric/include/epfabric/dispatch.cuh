// Low-latency dispatch: each token goes once to every rank that holds some of its experts, with
// the list of them; the receiver lays it out by expert. For kernels; by all blocks of a grid that
// is resident as a whole, with a thread for each rank at least. Outputs are laid out as DeepEP's
// low_latency_dispatch has them.
#pragma once

#include "calls.cuh"
#include "platform_number.cuh"

namespace epfabric {

inline constexpr uint32_t kBatch = 16;  // tokens that a block has in hand at once
inline constexpr uint32_t kNowhere = ~0u;
inline constexpr uint32_t kPhaseSend = 1, kPhaseReceive = 2;
inline constexpr uint32_t kReceiptWords = 4;  // token, copy, entries, reserved; then rows, weights

struct alignas(16) Vector {
  uint32_t words[4];
};

struct DispatchCall {
  const unsigned char* tokens;  // [count, hidden] bfloat16
  const int64_t* topk;          // [count, k]; negative: none
  const float* weights;         // [count, k], if they are known now: combine is quicker then
  int64_t* sent;                // [count, copies]: destination rank << 32 | message; -1: none
  unsigned char* received;      // [local experts, world × tokens, hidden] bfloat16 or 8-bit floats
  void* scales;                 // [local experts, hidden / 128 (or / 512), world × tokens]
  int32_t* expert_counts;       // [local experts]
  int32_t* source_tokens;       // [local experts, world × tokens]: its place at its source
  int64_t* ranges;              // [local experts, world]: first row << 32 | rows
  int32_t* receipts;            // [world, tokens, 4 + 2 topk], for combine
  int32_t* source_messages;     // [world], for combine
  int32_t* sums;                // [local experts] to which counts are added, or nothing
  uint64_t* waits;              // [world] to which ns of waiting are added, or nothing
  uint32_t count, k, phases;
  uint32_t power_scales;  // scales are powers of two
  uint32_t byte_scales;   // and are written as their exponents, a byte each
};

namespace detail {

struct Outgoing {
  uint32_t experts[kBatch][kMaxTopk];       // that a token goes to, or kNowhere
  uint32_t destinations[kBatch][kMaxTopk];  // their ranks, or kNowhere
  uint32_t entries[kBatch][kMaxTopk];
  float weights[kBatch][kMaxTopk];
  uint32_t leads[kBatch][kMaxTopk];          // the first of its token with its destination
  unsigned char* targets[kBatch][kMaxTopk];  // by copy: where the token goes
  uint32_t copies[kBatch];
};

// Batches of one block: its units are block(), block() + blocks(), …
EPF_DEVICE inline uint32_t batch_at(uint32_t first, uint32_t end) {
  const uint32_t left = (end - first + platform::blocks() - 1) / platform::blocks();
  return left < kBatch ? left : kBatch;
}

EPF_DEVICE inline void write_header(const Shape& shape, const Outgoing& out, uint32_t i, uint32_t k,
                                    uint32_t token, uint32_t copy, unsigned char* message) {
  const uint32_t destination = out.destinations[i][k];
  uint32_t entries = 0;
  auto* to = reinterpret_cast<uint32_t*>(message + sizeof(MessageHeader));
  auto* weights = reinterpret_cast<float*>(message + shape.weights_offset());
  for (uint32_t other = k; other < kMaxTopk; ++other) {
    if (out.destinations[i][other] != destination || out.entries[i][other] == kNowhere) continue;
    weights[entries] = out.weights[i][other];
    to[entries++] = out.entries[i][other];
  }
  *reinterpret_cast<MessageHeader*>(message) = {token, copy, entries, 0};
}

// An expert that a token names, and its weight.
struct Choice {
  int64_t named = -1;
  float weight = 0;
};

// By a block: what its next tokens name; thread (i, k) has the k-th choice of the i-th token.
EPF_DEVICE inline Choice read_choice(const DispatchCall& call, uint32_t first) {
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  Choice choice;
  if (first >= call.count || i >= batch_at(first, call.count) || k >= call.k) return choice;
  const uint64_t at = uint64_t{first + i * platform::blocks()} * call.k + k;
  choice.named = call.topk[at];
  if (call.weights != nullptr) choice.weight = call.weights[at];
  return choice;
}

// By a block: the experts and weights that `n` tokens name.
EPF_DEVICE inline void share_choices(const Shape& shape, const Here& here, const Choice& choice,
                                     uint32_t n, Outgoing& out) {
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  if (i < n) {
    const int64_t named = choice.named;
    out.weights[i][k] = choice.weight;
    uint32_t expert = kNowhere;
    if (named >= 0 && named < shape.experts) expert = static_cast<uint32_t>(named);
    uint32_t destination = expert == kNowhere ? kNowhere : expert / shape.local_experts();
    if (destination != kNowhere && here.masked[destination] != 0) expert = destination = kNowhere;
    out.experts[i][k] = expert;
    out.destinations[i][k] = destination;
  }
  platform::block_barrier();
}

// By a block: gives each of `n` tokens its messages and writes their headers. An expert that a
// token names twice counts once: its rows are made for one a token.
EPF_DEVICE inline void place_tokens(const DeviceBuffer& buffer, const Here& here, const Window& at,
                                    const DispatchCall& call, const Choice& choice, uint32_t first,
                                    uint32_t n, bool fp8, Outgoing& out) {
  const Shape& shape = buffer.shape;
  const uint32_t local = shape.local_experts();
  const uint32_t i = platform::thread() / kMaxTopk;
  const uint32_t k = platform::thread() % kMaxTopk;
  share_choices(shape, here, choice, n, out);
  const uint32_t expert = i < n ? out.experts[i][k] : kNowhere;
  const uint32_t destination = i < n ? out.destinations[i][k] : kNowhere;
  bool leads = expert != kNowhere;
  uint64_t message = 0;
  if (i < n) {
    bool again = !leads;
#pragma unroll
    for (uint32_t other = 0; other < kMaxTopk; ++other) {
      again = again || (other < k && out.experts[i][other] == expert);
      leads = leads && (other >= k || out.destinations[i][other] != destination);
    }
    out.leads[i][k] = leads;
    if (leads) message = platform::fetch_add_device(buffer.messages + destination, 1);
    uint64_t index = 0;
    if (!again) index = platform::fetch_add_device(buffer.counts + expert, 1);
    out.entries[i][k] =
        again ? kNowhere : pack_entry(expert - destination * local, static_cast<uint32_t>(index));
  }
  platform::block_barrier();
  if (i >= n) return;
  uint32_t copy = 0;
  uint32_t copies = 0;
  for (uint32_t other = 0; other < kMaxTopk; ++other) {
    copies += out.leads[i][other];
    copy += other < k ? out.leads[i][other] : 0;
  }
  const uint32_t token = first + i * platform::blocks();
  int64_t* sent = call.sent + uint64_t{token} * shape.copies();
  if (leads) {
    unsigned char* target =
        messages_to(buffer, here, at, destination) + message * shape.message_bytes(fp8);
    write_header(shape, out, i, k, token, copy, target);
    out.targets[i][copy] = target + shape.header_bytes();
    sent[copy] = static_cast<int64_t>(uint64_t{destination} << 32 | message);
  }
  if (k == 0) {
    out.copies[i] = copies;
    for (uint32_t none = copies; none < shape.copies(); ++none) sent[none] = -1;
  }
}

EPF_DEVICE inline void copy_tokens(const DeviceBuffer& buffer, const DispatchCall& call,
                                   uint32_t first, uint32_t n, const Outgoing& out) {
  const uint32_t vectors = buffer.shape.hidden / 8;
  for (uint32_t unit = platform::thread(); unit < n * vectors; unit += platform::threads()) {
    const uint32_t i = unit / vectors;
    const uint32_t v = unit - i * vectors;
    const uint64_t token = first + i * platform::blocks();
    const Vector vector = reinterpret_cast<const Vector*>(call.tokens)[token * vectors + v];
    for (uint32_t copy = 0; copy < out.copies[i]; ++copy) {
      reinterpret_cast<Vector*>(out.targets[i][copy])[v] = vector;
    }
  }
}

// As 8-bit floats: a thread takes 16 channels, 8 threads share a scale.
EPF_DEVICE inline void cast_tokens(const DeviceBuffer& buffer, const DispatchCall& call,
                                   uint32_t first, uint32_t n, const Outgoing& out) {
  const uint32_t hidden = buffer.shape.hidden;
  const uint32_t units = hidden / 16;
  for (uint32_t base = 0; base < n * units; base += platform::threads()) {
    const uint32_t unit = base + platform::thread();
    const bool active = unit < n * units;
    const uint32_t i = active ? unit / units : 0;
    const uint32_t v = unit - i * units;
    float values[16];
    float amount = 0;
    if (active) {
      const uint64_t token = first + i * platform::blocks();
      const auto* from =
          reinterpret_cast<const Vector*>(call.tokens) + token * (hidden / 8) + 2 * v;
      const Vector pair[2] = {from[0], from[1]};
      for (uint32_t w = 0; w < 8; ++w) {
        const uint32_t word = pair[w / 4].words[w % 4];
        values[2 * w] = lower_bf16(word);
        values[2 * w + 1] = upper_bf16(word);
      }
      for (const float value : values) {
        const float size = value < 0 ? -value : value;
        amount = size > amount ? size : amount;
      }
    }
    amount = platform::max_of_eight(amount);
    if (!active) continue;
    const float scale = fp8_scale(amount, call.power_scales != 0);
    const float factor = 1.0f / scale;
    Vector small;
    for (uint32_t w = 0; w < 4; ++w) {
      small.words[w] = platform::fp8_pair(values[4 * w] * factor, values[4 * w + 1] * factor) |
                       platform::fp8_pair(values[4 * w + 2] * factor, values[4 * w + 3] * factor)
                           << 16;
    }
    for (uint32_t copy = 0; copy < out.copies[i]; ++copy) {
      reinterpret_cast<Vector*>(out.targets[i][copy])[v] = small;
      if (v % 8 == 0) reinterpret_cast<float*>(out.targets[i][copy] + hidden)[v / 8] = scale;
    }
  }
}

// By the last block: how many tokens each expert gets, then how many messages each rank.
EPF_DEVICE inline void publish_tokens(const DeviceBuffer& buffer, const Here& here,
                                      const Window& at, bool fp8) {
  EPF_SHARED uint32_t proxied[kWindowRanks];
  const Shape& shape = buffer.shape;
  const uint32_t local = shape.local_experts();
  const uint32_t me = platform::thread();
  const uint64_t messages = me < shape.world ? platform::load_device(buffer.messages + me) : 0;
  for (uint32_t g = me; g < shape.experts; g += platform::threads()) {
    const uint64_t count = platform::load_device(buffer.counts + g);
    platform::store_device(buffer.counts + g, 0);
    if (here.masked[g / local] != 0) continue;
    counts_to(buffer, here, at, g / local)[g % local] = static_cast<uint32_t>(count);
  }
  platform::block_barrier();
  if (me < shape.world) {
    platform::store_device(buffer.messages + me, 0);
    const uint64_t place = place_of(buffer, at.dispatch_words, here.sent, buffer.rank);
    const uint64_t word = word_of(here.sent, static_cast<uint32_t>(messages));
    if (here.proxied(me)) {
      proxied[me] = static_cast<uint32_t>(messages);
      // A masked rank's agent may not have read what was there two calls ago.
      if (here.masked[me] == 0) note_to(buffer, here, me)->messages = word;
    } else if (here.masked[me] == 0) {
      platform::store_release(here.at<uint64_t>(me, place), word);
    }
  }
  platform::block_barrier();
  post_tokens(buffer, here, proxied, fp8);
}

}  // namespace detail

template <bool kFp8>
EPF_DEVICE void dispatch_send(const DeviceBuffer& buffer, Here& here, const DispatchCall& call) {
  EPF_SHARED detail::Outgoing out;
  const Window at = window_of(buffer.shape);
  detail::Choice choice = detail::read_choice(call, platform::block());  // while it waits
  await_credits(buffer, here, at.dispatch_credits, here.sent, Awaited::kTokenRoom);
  platform::block_barrier();
  const uint32_t step = platform::blocks() * kBatch;
  for (uint32_t first = platform::block(); first < call.count; first += step) {
    const uint32_t n = detail::batch_at(first, call.count);
    if (first != platform::block()) choice = detail::read_choice(call, first);
    detail::place_tokens(buffer, here, at, call, choice, first, n, kFp8, out);
    platform::block_barrier();
    if constexpr (kFp8) {
      detail::cast_tokens(buffer, call, first, n, out);
    } else {
      detail::copy_tokens(buffer, call, first, n, out);
    }
    platform::block_barrier();
  }
  if (!last_block(&buffer.state->arrived_sent)) return;
  detail::publish_tokens(buffer, here, at, kFp8);
}

}  // namespace epfabric
