// The high-throughput kernels as they are launched; compiled by epfabric.cuda.channels.
#include "epfabric/channel_forward.cuh"

using namespace epfabric;

EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024)
    channels_meet(const ChannelBuffer buffer, const MeetCall call) {
  meet(buffer, call);
}

EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024)
    channels_dispatch(const ChannelBuffer buffer, const ChannelDispatch call) {
  channel_dispatch(buffer, call);
}

EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024)
    channels_combine(const ChannelBuffer buffer, const ChannelCombine call) {
  channel_combine(buffer, call);
}

// For the mirrors in Python: offsets and sizes as this compiler has them.
EPF_KERNEL void channels_mirror(ChannelShape shape, uint64_t* out) {
  const uint64_t values[] = {
      channel_window_bytes(shape),
      shape.slot_bytes(),
      sizeof(ChannelState),
      sizeof(ChannelBuffer),
      sizeof(MeetCall),
      sizeof(ChannelDispatch),
      sizeof(ChannelCombine),
      channel_transit(shape).bytes,
  };
  for (uint32_t i = 0; i < sizeof values / 8; ++i) out[i] = values[i];
}
