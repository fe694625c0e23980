// The kernels of rows by expert; compiled by epfabric.cuda.places.
#include "epfabric/places.cuh"

using namespace epfabric;

EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024) place_rows(const PlacesCall call) { place_all(call); }
EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024) spread_rows(const SpreadCall call) { spread_all(call); }
EPF_KERNEL void EPF_LAUNCH_BOUNDS(1024) sum_rows(const SumCall call) { sum_all(call); }

// For the mirrors in Python.
EPF_KERNEL void places_mirror(uint64_t* out) {
  out[0] = sizeof(PlacesCall);
  out[1] = sizeof(SpreadCall);
  out[2] = sizeof(SumCall);
}
