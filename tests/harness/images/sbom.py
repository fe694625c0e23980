"""The list of what an image holds, as CycloneDX JSON: Debian's packages and Python's distributions.

Read from the image's own records, so that it tells what is there, not what was asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from harness.images.buildah import output
from packageurl import PackageURL

NAMESPACE = uuid.UUID("b7bd1f0e-5a3c-5c39-9a0b-6a9d6a2f7f1a")
FIELDS = (
    "${db:Status-Status}\\t${binary:Package}\\t${Version}\\t${Architecture}\\t${source:Package}\\n"
)


def bill(reference: str, digest: str, components: Iterable[Component]) -> str:
    """The document for one image; the same image gives the same bytes."""
    name, _, tag = reference.partition(":")
    subject = Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=tag,
        bom_ref=digest,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
    )
    document = Bom(
        components=components,
        serial_number=uuid.uuid5(NAMESPACE, digest),
        metadata=BomMetaData(component=subject, timestamp=datetime.fromtimestamp(0, UTC)),
    )
    document.register_dependency(subject, document.components)
    return JsonV1Dot6(document).output_as_string(indent=1) + "\n"


def debian(root: Path, distribution: str = "debian-13") -> Iterator[Component]:
    """Installed packages by the image's dpkg database."""
    listed = output(
        ["dpkg-query", f"--admindir={root / 'var/lib/dpkg'}", "--show", f"--showformat={FIELDS}"]
    )
    for line in listed.splitlines():
        status, name, version, architecture, source = line.split("\t")
        if status == "installed":
            yield component(
                name.partition(":")[0],
                version,
                PackageURL(
                    "deb",
                    "debian",
                    name.partition(":")[0],
                    version,
                    {"arch": architecture, "distro": distribution},
                ),
                [Property(name="epfabric:source", value=source)],
            )


def python(root: Path) -> Iterator[Component]:
    """Distributions in the folders that the image's Python looks into."""
    folders = [
        *root.glob("opt/epfabric/lib/python3.*/site-packages"),
        root / "usr/lib/python3/dist-packages",
    ]
    for found in distributions(path=[str(folder) for folder in folders]):
        name = re.sub(r"[-_.]+", "-", found.name).lower()
        yield component(name, found.version, PackageURL("pypi", None, name, found.version), [])


def component(name: str, version: str, purl: PackageURL, properties: list[Property]) -> Component:
    return Component(
        name=name, version=version, purl=purl, bom_ref=purl.to_string(), properties=properties
    )


def of(root: Path, reference: str, digest: str) -> str:
    found = [*debian(root), *python(root)]
    return bill(reference, digest, sorted(found, key=lambda one: str(one.purl)))
