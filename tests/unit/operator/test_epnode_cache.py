"""EPFabricNodes as the operator knows them: what it wrote counts at once, and nothing older."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from epfabric_operator.epnodes import EPNodeCache
from epfabric_operator.kube import Object


def item(name: str, version: int, uid: str = "u", fabric: str = "moe", **status: Any) -> Object:
    return {
        "metadata": {"name": name, "uid": uid, "resourceVersion": str(version)},
        "spec": {"fabric": fabric, "nodeUid": f"node-{name}"},
        "status": status,
    }


class Script:
    """An API server that lists and then tells what it is given; for one run of the watch."""

    def __init__(
        self, listed: list[Object], version: int, events: list[tuple[str, Object]]
    ) -> None:
        self.listed, self.version, self.events = listed, version, events
        self.stop = threading.Event()

    def paged(self, path: str, **_: Any) -> Iterator[Object]:
        yield {"metadata": {"resourceVersion": str(self.version)}, "items": self.listed}

    def watch(self, path: str, version: str, **_: Any) -> Iterator[Object]:
        for kind, found in self.events:
            yield {"type": kind, "object": found}
        self.stop.set()


def followed(
    script: Script, told: list[str | None], before: EPNodeCache | None = None
) -> EPNodeCache:
    kube: Any = script
    made = before or EPNodeCache(kube, told.append)
    made.run(script.stop)
    return made


def sessions(cache: EPNodeCache) -> dict[str, int | None]:
    return {name: epnode.status.sessions for name, epnode in cache.snapshot().items()}


def test_a_list_and_its_events_are_known_and_told() -> None:
    told: list[str | None] = []
    events = [
        ("ADDED", item("b", 6, sessions=2)),
        ("MODIFIED", item("a", 7, sessions=3)),
        ("DELETED", item("b", 8)),
    ]
    cache = followed(Script([item("a", 5, sessions=1)], 5, events), told)
    assert sessions(cache) == {"a": 3}
    assert told == [None, "moe", "moe", "moe"]
    assert cache.synced.is_set()


def test_what_was_written_is_not_undone_by_the_event_of_an_earlier_write() -> None:
    told: list[str | None] = []
    script = Script([item("a", 5)], 5, [("MODIFIED", item("a", 6, sessions=1))])
    cache = followed(script, told)
    cache.wrote(item("a", 9, sessions=9))
    late = [("MODIFIED", item("a", 7, sessions=7)), ("MODIFIED", item("a", 9, sessions=9))]
    for kind, found in late:
        cache._take(kind, found)
    assert sessions(cache) == {"a": 9}
    assert told == [None, "moe"], "what we wrote ourselves, or know, is no reason for a look"


def test_an_object_that_we_made_anew_outlives_the_end_of_the_one_before() -> None:
    cache = followed(Script([item("a", 5, uid="old")], 5, []), [])
    cache.wrote(item("a", 9, uid="new", sessions=9))
    cache._take("DELETED", item("a", 8, uid="old"))
    assert sessions(cache) == {"a": 9}


def test_an_answer_that_comes_after_the_end_of_its_object_brings_nothing_back() -> None:
    events = [("MODIFIED", item("a", 6)), ("DELETED", item("a", 7))]
    cache = followed(Script([item("a", 5)], 5, events), [])
    cache.wrote(item("a", 6))
    assert sessions(cache) == {}
    cache.wrote(item("b", 8))
    assert list(cache.snapshot()) == ["b"]


@pytest.mark.parametrize("other", ["moe", "dense"])
def test_both_fabrics_are_told_of_a_node_that_changes_hands(other: str) -> None:
    told: list[str | None] = []
    script = Script([item("a", 5)], 5, [("MODIFIED", item("a", 6, fabric=other))])
    followed(script, told)
    assert told == ([None, "moe"] if other == "moe" else [None, "moe", "dense"])
