"""Expert-parallel buffers with DeepEP's interface; needs `epfabric[cuda]` and
the application's own torch.

`import epfabric` imports nothing of this until epfabric.Buffer is asked for; torch is imported
when a buffer is made.
"""

from epfabric.buffer.buffer import Buffer
from epfabric.buffer.config import Config
from epfabric.buffer.event import EventHandle, EventOverlap

__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap"]
