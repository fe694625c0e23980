"""The agent as another build would be: it speaks other versions of the protocol between agents.

`python other_build.py OLDEST NEWEST OPTION…`, as `epfabric-agent OPTION…`; for test_builds.py.
"""

import sys

from epfabric.versions import Span
from epfabric_agent.peers import versions

if __name__ == "__main__":
    versions.SPOKEN = Span(int(sys.argv.pop(1)), int(sys.argv.pop(1)))
    from epfabric_agent.main import main  # what takes SPOKEN is imported by this

    sys.exit(main())
