// Where things lie in the memory that ranks exchange in, for test_windows.py: reads shapes (five
// numbers each) from standard input, writes a line for each. Channels have what they need of it.
#include <cstdio>
#include <initializer_list>

#include "epfabric/channels.h"
#include "epfabric/transit.h"

int main() {
  epfabric::Shape shape;
  while (std::scanf("%u %u %u %u %u", &shape.world, &shape.experts, &shape.tokens, &shape.hidden,
                    &shape.topk) == 5) {
    const epfabric::Window at = epfabric::window_of(shape);
    const epfabric::Transit through = epfabric::transit_of(shape);
    const epfabric::ChannelShape channels{shape.world, shape.experts % 64 + 1, shape.tokens,
                                          shape.topk,  shape.hidden / 128,     shape.hidden};
    for (const epfabric::uint64_t value : {at.dispatch_words,
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
                                           through.tokens,
                                           through.weights,
                                           through.rows,
                                           through.note_bytes,
                                           through.tokens_each,
                                           through.weights_each,
                                           through.rows_each,
                                           through.bytes,
                                           channels.slot_bytes(),
                                           epfabric::channel_window_bytes(channels),
                                           epfabric::channel_transit(channels).bytes}) {
      std::printf("%llu ", static_cast<unsigned long long>(value));
    }
    std::printf("\n");
  }
  return 0;
}
