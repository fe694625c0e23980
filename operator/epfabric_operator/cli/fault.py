"""How a command ends: its exit codes, and the error that carries one; used by all commands."""

from __future__ import annotations

FINE = 0
FOUND = 1
USAGE = 2
NO_CLUSTER = 3
NO_RIGHT = 4
NOT_FOUND = 5
FAILED = 6
INTERRUPTED = 130

EXIT_CODES = """\
exit codes:
  0    all is well
  1    the command did its work and found something: a fabric or node that is not Ready,
       a group that failed (status, nodes, groups), a finding of severity error (doctor)
  2    wrong command line
  3    no cluster: no kubeconfig, or no answer
  4    not allowed; the message says which right is missing
  5    not there: EPFabric is not installed, or nothing has that name
  6    failed: a benchmark that did not finish, a file that cannot be written
  130  interrupted
"""


class Fault(Exception):
    """Ends the command with a sentence that says what to do."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
