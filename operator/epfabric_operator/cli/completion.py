"""Completes for shells: `kubectl_complete-epfabric` for kubectl's own, and scripts.

kubectl runs kubectl_complete-epfabric with the words typed so far, the last one unfinished, and
takes one candidate a line and then a directive, as cobra's programs print them.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence

from epfabric_operator.cli.main import parser

NO_FILES = 4
FILES = 0
ASK_S = 2.0
BASH = """\
_kubectl_epfabric() {
  local IFS=$'\\n' line
  COMPREPLY=()
  while read -r line; do
    [[ $line == :* ]] || COMPREPLY+=("${line%%$'\\t'*}")
  done < <(kubectl_complete-epfabric "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _kubectl_epfabric kubectl-epfabric
"""
ZSH = """\
#compdef kubectl-epfabric
_kubectl_epfabric() {
  local -a found
  found=(${(f)"$(kubectl_complete-epfabric "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  found=(${found:#:*})
  compadd -- ${found%%$'\\t'*}
}
compdef _kubectl_epfabric kubectl-epfabric
"""
FISH = """\
function __kubectl_epfabric
  set -l words (commandline -opc) (commandline -ct)
  kubectl_complete-epfabric $words[2..-1] 2>/dev/null | string match -v ':*'
end
complete -c kubectl-epfabric -f -a '(__kubectl_epfabric)'
"""


def script(options: argparse.Namespace) -> int:
    print({"bash": BASH, "zsh": ZSH, "fish": FISH}[options.shell], end="")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Never fails: a shell has nobody to tell."""
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    try:
        found, directive = complete(words)
    except Exception:
        found, directive = [], NO_FILES
    for one in found:
        print(one)
    print(f":{directive}")
    return 0


def complete(words: Sequence[str]) -> tuple[list[str], int]:
    """Candidates for the last word, and what the shell may add."""
    *before, last = words
    top = parser()
    commands = _commands(top)
    chosen = next((word for word in before if word in commands), None)
    if chosen is None:
        return _starting(last, commands), NO_FILES
    one = commands[chosen]
    rest = before[before.index(chosen) + 1 :]
    option = _waiting(one, rest[-1]) if rest else None
    if option is not None:
        if option.choices is not None:
            return _starting(last, map(str, option.choices)), NO_FILES
        if option.dest in ("kubeconfig", "file"):
            return [], FILES
        return _starting(last, _names(option.dest, rest)), NO_FILES
    if last.startswith("-"):
        return _starting(last, one._option_string_actions), NO_FILES
    position = next((action for action in one._actions if not action.option_strings), None)
    if position is not None and position.choices is not None:
        return _starting(last, map(str, position.choices)), NO_FILES
    if position is not None and not [word for word in rest if not word.startswith("-")]:
        return _starting(last, _names(chosen, rest)), NO_FILES
    return [], NO_FILES


def _commands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in top._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def _waiting(one: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    """The option that takes the next word as its value."""
    action = one._option_string_actions.get(word)
    return action if action is not None and action.nargs is None else None


def _starting(last: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(last))


def _names(of: str, words: Sequence[str]) -> Iterator[str]:
    """Names that the cluster has; it is asked with a short bound."""
    if of not in ("fabric", "status", "nodes", "groups", "namespace"):
        return
    from epfabric_operator.cli import cluster

    given = dict(itertools.pairwise(words))
    made = cluster.connect(given.get("--kubeconfig"), given.get("--context"), ASK_S)
    if of == "namespace":
        yield from (one["metadata"]["name"] for one in made.list("/api/v1/namespaces"))
    elif of == "nodes":
        yield from (node.metadata.name for node in made.nodes())
    elif of == "groups":
        yield from (group.metadata.name for group in made.groups(None))
    else:
        yield from (fabric.metadata.name for fabric in made.fabrics())


if __name__ == "__main__":
    sys.exit(main())
