"""Expert-parallel buffers with DeepEP's interface; needs `epfabric[cuda]` and the application's own
torch.

`import epfabric` imports nothing of this until a buffer's class is asked for; torch is imported
when one is made.
"""

from epfabric.buffer.buffer import Buffer
from epfabric.buffer.config import Config
from epfabric.buffer.elastic import ElasticBuffer
from epfabric.buffer.event import EventHandle, EventOverlap
from epfabric.buffer.request import EPHandle

__all__ = ["Buffer", "Config", "EPHandle", "ElasticBuffer", "EventHandle", "EventOverlap"]
