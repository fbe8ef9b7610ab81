"""The lock names what is tested, the audit says when there was none, and the bill of materials is CycloneDX."""

from __future__ import annotations

import json
import re
from importlib import metadata

import audit
import lock
import pytest
import sbom

LOCKED = lock.entries(lock.LOCK.read_text(encoding="utf-8"))


def pins(lines: list[str]) -> dict[str, str]:
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {lock.plain(name): version for name, version in pairs}


def test_the_lock_has_the_versions_of_the_constraints_and_what_they_leave_out() -> None:
    tested = pins(lock.CONSTRAINTS.read_text(encoding="utf-8").splitlines())
    assert {name: version for name, (version, _) in LOCKED.items()} == tested | pins(list(lock.MORE))
    assert all(hashes for _, hashes in LOCKED.values())


def test_the_lock_is_written_as_it_is_read_and_names_no_address() -> None:
    text = lock.LOCK.read_text(encoding="utf-8")
    assert text == lock.HEAD + "".join(lock.written(name, *LOCKED[name]) for name in sorted(LOCKED))
    assert "://" not in text


def test_the_cpu_builds_of_torch_are_found_in_a_folder_and_on_a_page(tmp_path) -> None:
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux.whl").write_bytes(b"wheel")
    (tmp_path / "torch-2.12.0+cpu-cp311-cp311-linux.whl").write_bytes(b"older")
    digest = lock.hashlib.sha256(b"wheel").hexdigest()
    assert lock.cpu_builds(str(tmp_path), "2.13.0") == [digest]
    cpu, other = f"torch-2.13.0%2Bcpu-cp311-linux.whl#sha256={digest}", f"torch-2.13.0-a.whl#sha256={'0' * 64}"
    links = f'<a href="/{cpu}">a</a><a href="/{other}">b</a>'
    (tmp_path / "page.html").write_text(links)
    assert lock.cpu_builds((tmp_path / "page.html").as_uri(), "2.13.0") == [digest]


@pytest.mark.parametrize(
    ("output", "status", "sentence"),
    [
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, 0, "1 packages have no known"),
        (
            {"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}]},
            1,
            "a 1: CVE-1, mended in 2",
        ),
        ({"dependencies": [{"name": "a", "skip_reason": "not found"}]}, 2, "knows none of the 1 packages"),
        (
            {"dependencies": [{"name": "a", "skip_reason": "not found"}, {"name": "b", "version": "1", "vulns": []}]},
            2,
            "does not know a",
        ),
        (None, 2, "cannot be reached from here. pip-audit: no network"),
    ],
)
def test_an_audit_passes_only_if_every_package_was_looked_up(output, status, sentence) -> None:
    found, lines = audit.judge("osv", json.dumps(output) if output else "", "trace\nno network\n")
    assert found == status
    assert sentence in "\n".join(lines)


@pytest.fixture(scope="module")
def bill() -> dict:
    return sbom.bill_of(list(metadata.distributions()), LOCKED)


def test_the_bill_has_what_the_schema_of_cyclonedx_requires(bill: dict) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    every = [bill["metadata"]["component"], *bill["components"]]
    refs = [one["bom-ref"] for one in every]
    assert len(refs) == len(set(refs))
    for one in every:
        assert one["type"] in ("library", "file")
        assert one["name"]
        assert one["scope"] in ("required", "optional")
        assert all(len(each["license"]) == 1 for each in one.get("licenses", []))
        for link in one.get("externalReferences", []):
            assert link["type"] == "distribution"
            assert link["url"]
        hashes = [
            *one.get("hashes", []),
            *(each for link in one.get("externalReferences", []) for each in link["hashes"]),
        ]
        assert all(each["alg"] == "SHA-256" and re.fullmatch("[0-9a-f]{64}", each["content"]) for each in hashes)
    for one in bill["dependencies"]:
        assert {one["ref"], *one["dependsOn"]} <= set(refs)


def test_the_bill_has_versions_licences_digests_and_what_is_required(bill: dict) -> None:
    by_name = {one["name"]: one for one in bill["components"]}
    torch = by_name["torch"]
    assert torch["version"] == metadata.version("torch")
    assert torch["scope"] == "required"
    assert "BSD" in torch["licenses"][0]["license"]["name"]
    if torch["version"].split("+")[0] == LOCKED["torch"][0]:
        assert len(torch["externalReferences"][0]["hashes"]) == len(LOCKED["torch"][1])
    assert by_name["pytest"]["scope"] == "optional"
    assert by_name["htmx.org"]["licenses"] == [{"license": {"id": "0BSD"}}]
    assert (sbom.HTMX.parent / "htmx-LICENSE.txt").is_file()
