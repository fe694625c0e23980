"""The generated messages of the CSI client are those of its .proto file."""

from pathlib import Path

from harness import csi_client


def test_messages_are_made_from_the_proto_file_that_lies_beside_them(tmp_path: Path) -> None:
    csi_client.generate(tmp_path)
    for name in ("csi_pb2.py", "csi_pb2.pyi"):
        made, kept = tmp_path / name, csi_client.HERE / name
        message = "run: PYTHONPATH=tests .venv/bin/python -m harness.csi_client"
        assert made.read_text() == kept.read_text(), message
