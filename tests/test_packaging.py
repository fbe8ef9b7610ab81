"""What pyproject.toml promises: bounds that the tested versions meet, Pythons, and what the wheel holds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = {
    name.lower().replace("_", "-"): version
    for name, version in re.findall(
        r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
}


def bounds() -> dict[str, str]:
    """The lower bound of every package that is asked for; those of `encoders` are not installed for the tests."""
    extras = [some for extra, some in PROJECT["optional-dependencies"].items() if extra != "encoders"]
    listed = [one for some in (PROJECT["dependencies"], *extras) for one in some if not one.startswith("labelwise[")]
    parts = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", one) for one in listed]
    assert all(parts), listed
    return {part[1].lower(): part[2] for part in parts if part is not None}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_the_tested_versions_are_pinned_and_meet_the_bounds() -> None:
    for name, least in bounds().items():
        assert name in PINS, f"constraints.txt has no {name}"
        assert numbers(PINS[name]) >= numbers(least), name


def test_one_bound_for_each_package() -> None:
    every = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    listed = {re.sub(r"\[\w+\]", "", one) for some in every for one in some if not one.startswith("labelwise[")}
    names = [re.split(">=", one)[0] for one in listed]
    assert len(names) == len(set(names)), sorted(names)


def test_the_pythons_are_those_that_the_workflow_tests() -> None:
    listed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "versions.yml").read_text(encoding="utf-8")
    assert listed == re.findall(r'"(3\.\d+)"', workflow)
    assert PROJECT["requires-python"] == f">={listed[0]}"
