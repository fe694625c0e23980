"""Limits of the node-local ABI as Python numbers; used by messages, layout and command packing.

They stand once more in include/epfabric/{command,layout}.h; tests/headers compares the two.
"""

ABI_VERSION = 1
ABI_OLDEST = 1  # that this version still speaks
MAX_WORLD = 4096
MAX_RINGS = 64
MIN_DEPTH = 16
MAX_DEPTH = 1 << 16
MAX_BATCH = 8
MAX_SIGNALS = 1 << 11
MAX_INFLIGHT = 16384
OFFSET_UNIT = 16
ATOMIC_WORD = 8  # bytes
MAX_WRITE_BYTES = 16 << 20
REGION_SPACE_BYTES = 64 << 30
REGION_ALIGN = 64 * 1024
PAGE_BYTES = 4096
MAX_ADVANCE = (1 << 15) - 1
