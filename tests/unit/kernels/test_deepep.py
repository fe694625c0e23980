"""Code written for DeepEP finds the same names and arguments here; no GPU and no torch needed."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest
from epfabric import deep_ep
from unit.kernels.deepep_interface import (
    BUFFER,
    BUFFER_STATIC,
    CONFIG,
    ELASTIC,
    ELASTIC_HANDLE,
    ELASTIC_STATIC,
    EVENT_OVERLAP,
    REQUIRED,
)

EXTENSIONS: dict[tuple[type, str], tuple[str, ...]] = {
    (deep_ep.Buffer, "__init__"): ("session", "region", "throughput_region"),
    (deep_ep.ElasticBuffer, "__init__"): ("comm", "session"),
}
CASES = [
    (kind, name, arguments, static)
    for kind, table, static in [
        (deep_ep.Buffer, BUFFER, False),
        (deep_ep.Buffer, BUFFER_STATIC, True),
        (deep_ep.ElasticBuffer, ELASTIC, False),
        (deep_ep.ElasticBuffer, ELASTIC_STATIC, True),
        (deep_ep.Config, CONFIG, False),
        (deep_ep.EventOverlap, EVENT_OVERLAP, False),
    ]
    for name, arguments in table.items()
]


@pytest.mark.parametrize(
    ("kind", "name", "arguments", "static"),
    CASES,
    ids=lambda v: getattr(v, "__name__", str(v))[:30],
)
def test_a_method_takes_the_arguments_of_deepep(
    kind: type, name: str, arguments: dict[str, object], static: bool
) -> None:
    found = list(inspect.signature(getattr(kind, name)).parameters.values())
    assert isinstance(inspect.getattr_static(kind, name), staticmethod) == static
    alike = [one for one in found if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    ours = {
        one.name: REQUIRED if one.default is inspect.Parameter.empty else one.default
        for one in (alike if static else alike[1:])
    }
    assert list(ours.items()) == list(arguments.items())
    more = [(one.name, one.kind, one.default) for one in found if one not in alike]
    assert more == [
        (each, inspect.Parameter.KEYWORD_ONLY, None) for each in EXTENSIONS.get((kind, name), ())
    ]


def test_a_handle_has_what_deepep_says_of_it() -> None:
    fields = {each.name for each in dataclasses.fields(deep_ep.EPHandle)}
    found = [name for name in ELASTIC_HANDLE if name in fields or hasattr(deep_ep.EPHandle, name)]
    assert found == ELASTIC_HANDLE


def test_sessions_import_nothing_of_the_gpu() -> None:
    code = (
        "import sys, epfabric; "
        "assert not {'torch', 'cuda.bindings', 'epfabric.buffer'} & set(sys.modules); "
        "from epfabric import Buffer, ElasticBuffer, deep_ep; "
        "assert (Buffer, ElasticBuffer) == (deep_ep.Buffer, deep_ep.ElasticBuffer); "
        "assert not {'torch', 'cuda.bindings'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_sizes_grow_with_what_they_are_for() -> None:
    hint = deep_ep.Buffer.get_low_latency_rdma_size_hint
    small = hint(128, 7168, 8, 256)
    assert small > 2 * 8 * 128 * 7168 * 2  # two calls under way, from every rank
    assert hint(256, 7168, 8, 256) > small
    config = deep_ep.Config(24, 6, 256)
    assert config.get_nvl_buffer_size_hint(14336, 8) > 12 * 8 * 256 * 14336
    assert config.get_rdma_buffer_size_hint(14336, 8) == 0
    # Rings of both directions.
    assert config.get_rdma_buffer_size_hint(14336, 16) > 2 * 12 * 16 * 256 * 14336


def test_what_no_kernel_could_do_is_refused() -> None:
    for arguments, text in [((3,), "even"), ((20, 6, 6), "less than"), ((20, 0), "at least 1")]:
        with pytest.raises(ValueError, match=text):
            deep_ep.Config(*arguments)
    with pytest.raises(ValueError, match="no configuration for 11 ranks"):
        deep_ep.Buffer.get_dispatch_config(11)
    with pytest.raises(ValueError, match="even"):
        deep_ep.Buffer.set_num_sms(7)
    with pytest.raises(NotImplementedError, match="allow_nvlink_for_low_latency_mode"):
        deep_ep.Buffer(None, allow_nvlink_for_low_latency_mode=False)
