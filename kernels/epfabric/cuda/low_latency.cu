// The low-latency kernels as they are launched; compiled by epfabric.cuda.low_latency.
#include "epfabric/combine.cuh"

namespace epfabric {

constexpr uint32_t kThreads = 1024;

template <bool kFp8>
EPF_DEVICE void dispatch(const DeviceBuffer& buffer, const DispatchCall& call) {
  EPF_SHARED Here here;
  if (!look(buffer, Kind::kDispatch, here)) return;
  const bool sends = (call.phases & kPhaseSend) != 0;
  const bool receives = (call.phases & kPhaseReceive) != 0;
  if (sends) dispatch_send<kFp8>(buffer, here, call);
  if (receives) dispatch_receive<kFp8>(buffer, here, call);
  count_call(buffer, Kind::kDispatch, here, sends, receives);
}

}  // namespace epfabric

using namespace epfabric;

EPF_KERNEL void EPF_LAUNCH_BOUNDS(kThreads)
    dispatch_bf16(const DeviceBuffer buffer, const DispatchCall call) {
  epfabric::dispatch<false>(buffer, call);
}

EPF_KERNEL void EPF_LAUNCH_BOUNDS(kThreads)
    dispatch_fp8(const DeviceBuffer buffer, const DispatchCall call) {
  epfabric::dispatch<true>(buffer, call);
}

EPF_KERNEL void EPF_LAUNCH_BOUNDS(kThreads)
    combine(const DeviceBuffer buffer, const CombineCall call) {
  EPF_SHARED Here here;
  EPF_SHARED epfabric::detail::Named named;
  const bool sends = (call.phases & kPhaseSend) != 0;
  const bool receives = (call.phases & kPhaseReceive) != 0;
  CombineStart start;
  if (sends) start = combine_start(buffer, call, named);
  if (!look(buffer, Kind::kCombine, here)) return;
  if (sends) combine_send(buffer, here, call, start, named);
  if (receives) combine_receive(buffer, here, call);
  count_call(buffer, Kind::kCombine, here, sends, receives, call.weights != nullptr);
}

// By one block: waits until all ranks are done with all that this one wrote, so that its next calls
// may have another shape. All ranks do it: each tells the others here what it is done with.
EPF_KERNEL void EPF_LAUNCH_BOUNDS(kThreads) settle(const DeviceBuffer buffer) {
  EPF_SHARED Here here;
  if (!look(buffer, Kind::kDispatch, here)) return;
  const Window at = window_of(buffer.shape);
  const BlockCalls& calls = here.calls;
  await_credits(buffer, here, at.dispatch_credits, calls.dispatch_sent, Awaited::kTokenRoom, 1);
  platform::block_barrier();
  await_credits(buffer, here, at.combine_credits, calls.combine_sent, Awaited::kRowRoom, 1);
}

// For the mirrors in Python: offsets and sizes as this compiler has them.
EPF_KERNEL void low_latency_mirror(Shape shape, uint64_t* out) {
  const Window at = window_of(shape);
  const Transit transit = transit_of(shape);
  const uint64_t values[] = {at.dispatch_words,
                             at.weight_words,
                             at.combine_words,
                             at.dispatch_credits,
                             at.combine_credits,
                             at.quick_weights,
                             at.quick_rows,
                             at.counts,
                             at.weights,
                             at.messages,
                             at.rows,
                             at.bytes,
                             transit.tokens,
                             transit.weights,
                             transit.rows,
                             transit.note_bytes,
                             transit.tokens_each,
                             transit.weights_each,
                             transit.rows_each,
                             transit.bytes,
                             shape.message_bytes(false),
                             shape.message_bytes(true),
                             shape.copies(),
                             sizeof(BufferState),
                             sizeof(BlockCalls),
                             sizeof(DeviceBuffer),
                             sizeof(DispatchCall),
                             sizeof(CombineCall)};
  for (uint32_t i = 0; i < sizeof values / 8; ++i) out[i] = values[i];
}
