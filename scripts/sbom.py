"""Write the software bill of materials of the environment it runs in: CycloneDX 1.5 as JSON.

    python scripts/sbom.py [FILE]

Every installed distribution is a component, with its version, licence as its metadata states it, package URL, and the
SHA-256 of every file that requirements.lock allows for it. `scope` is "required" for what a plain `pip install
labelwise` needs, and "optional" for what only extras need. Files of others that lie in the package are components too.
FILE is dist/labelwise-VERSION.cdx.json if not given.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lock import LOCK, entries, plain
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
HTMX = ROOT / "src" / "labelwise" / "server" / "static" / "htmx-2.0.11.min.js"
IGNORED = ("labelwise", "pip")  # the subject itself, and what installs


def main(argv: list[str]) -> int:
    """Write the file and say what is in it."""
    bill = bill_of(list(metadata.distributions()), entries(LOCK.read_text(encoding="utf-8")))
    path = Path(argv[0]) if argv else ROOT / "dist" / f"labelwise-{metadata.version('labelwise')}.cdx.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    unknown = [one["name"] for one in bill["components"] if "licenses" not in one]
    print(f"{path}: {len(bill['components'])} components; no licence stated: {', '.join(unknown) or 'none'}")
    return 0


def bill_of(installed: Iterable[metadata.Distribution], locked: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    """The bill of these distributions, one of which is labelwise."""
    by_name = {plain(one.metadata["Name"]): one for one in installed}
    links = {name: sorted(needs(one) & by_name.keys()) for name, one in by_name.items()}
    required = reached("labelwise", links)
    refs = {name: f"pkg:pypi/{name}@{one.version}" for name, one in by_name.items()}
    listed = sorted(by_name.keys() - {*IGNORED})
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": component(by_name["labelwise"], "labelwise", refs["labelwise"], "required", {}),
        },
        "components": [
            *(
                component(by_name[name], name, refs[name], "required" if name in required else "optional", locked)
                for name in listed
            ),
            htmx(),
        ],
        "dependencies": [
            {"ref": refs[name], "dependsOn": [refs[one] for one in links[name] if one not in IGNORED]}
            for name in ("labelwise", *listed)
        ],
    }


def component(
    one: metadata.Distribution, name: str, ref: str, scope: str, locked: dict[str, tuple[str, list[str]]]
) -> dict[str, Any]:
    """A distribution as CycloneDX names it. A build such as 2.13.0+cpu is locked under 2.13.0."""
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": ref,
        "name": name,
        "version": one.version,
        "purl": ref,
        "scope": scope,
    }
    stated = licence(one)
    if stated:
        found["licenses"] = [{"license": {"name": stated}}]
    version, hashes = locked.get(name, ("", []))
    if hashes and version == one.version.split("+")[0]:
        files = [{"alg": "SHA-256", "content": digest} for digest in hashes]
        found["externalReferences"] = [
            {"type": "distribution", "url": ref, "hashes": files, "comment": "the files allowed by requirements.lock"}
        ]
    return found


def licence(one: metadata.Distribution) -> str:
    """The licence as the metadata states it, in one line; "" if it states none."""
    stated = [str(one.metadata.get(key) or "") for key in ("License-Expression", "License")]
    classified = [
        line.split(" :: ")[-1]
        for line in one.metadata.get_all("Classifier") or []
        if line.startswith("License :: ") and not line.endswith(":: OSI Approved")
    ]
    short = [text for text in stated if text.strip() not in ("", "UNKNOWN") and "\n" not in text.strip()]
    return (short or [", ".join(classified)])[0].strip()


def needs(one: metadata.Distribution) -> set[str]:
    """The names of what a distribution needs here without an extra."""
    asked = [Requirement(text) for text in one.requires or []]
    return {plain(each.name) for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})}


def reached(start: str, links: dict[str, list[str]]) -> set[str]:
    """Every name that is needed by the start, directly or not."""
    found, left = {start}, [start]
    while left:
        new = set(links[left.pop()]) - found
        found |= new
        left += new
    return found


def htmx() -> dict[str, Any]:
    """The file of others that lies in the package; its licence is next to it."""
    return {
        "type": "file",
        "bom-ref": "pkg:npm/htmx.org@2.0.11",
        "name": "htmx.org",
        "version": "2.0.11",
        "purl": "pkg:npm/htmx.org@2.0.11",
        "scope": "optional",
        "licenses": [{"license": {"id": "0BSD"}}],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(HTMX.read_bytes()).hexdigest()}],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
