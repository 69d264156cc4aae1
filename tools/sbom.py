"""A software bill of materials of a Python environment: what the image's build writes into the image.

    python tools/sbom.py /opt/hoss > /opt/hoss/sbom.cdx.json

The format is CycloneDX 1.6 as JSON (cyclonedx.org). It has no time and no random number, so that equal
environments have equal files. Only the standard library is imported: the environment's own Python has no
packages of ours."""

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any


def bill_of_materials(environment: Path) -> dict[str, Any]:
    """The packages in a virtual environment, by name. Raises FileNotFoundError where there is none."""
    packages = next(environment.glob("lib/python3.*/site-packages"), None)
    if packages is None:
        raise FileNotFoundError(
            f"{environment} is no virtual environment: it has no lib/python3.*/site-packages"
        )
    found = sorted(map(_component, distributions(path=[str(packages)])), key=lambda part: str(part["purl"]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "hoss", "version": _version(found)}},
        "components": found,
    }


def _component(package: Distribution) -> dict[str, Any]:
    name = re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()  # PEP 503
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{package.version}",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
    }
    licence = _field(package, "License-Expression")
    if licence:
        part["licenses"] = [{"expression": licence}]
    elif licence := _field(package, "License").partition("\n")[0]:  # some have the whole text there
        part["licenses"] = [{"license": {"name": licence.strip()}}]
    return part


def _field(package: Distribution, name: str) -> str:
    return package.metadata[name].strip() if name in package.metadata else ""


def _version(components: list[dict[str, Any]]) -> str:
    return next((str(part["version"]) for part in components if part["name"] == "hoss"), "")


if __name__ == "__main__":
    json.dump(bill_of_materials(Path(sys.argv[1])), sys.stdout, indent=1)
