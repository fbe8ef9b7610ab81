"""Look the locked versions up in the databases of known vulnerabilities, with pip-audit.

    python scripts/audit.py [LOCK]

Exit status: 0 if every package was looked up and none has a known vulnerability, 1 if one has, 2 if the audit could not
be made or not for every package. pip-audit itself ends well when a package is missing from the database, or when the
index at hand has no such database at all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
SERVICES = ("pypi", "osv")  # the databases that pip-audit reads
CANNOT = "Not audited: "


def main(argv: list[str]) -> int:
    """Ask one database after the other, until one knows every package."""
    lock = Path(argv[0]) if argv else LOCK
    tool = [shutil.which("pip-audit") or str(_own_tool())]
    options = ["-r", str(lock), "--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    outcome = 2
    for service in SERVICES:
        done = subprocess.run([*tool, "-s", service, *options], capture_output=True, text=True)
        outcome, lines = judge(service, done.stdout, done.stderr)
        print("\n".join(lines), flush=True)
        if outcome != 2:
            break
    return outcome


def judge(service: str, output: str, errors: str) -> tuple[int, list[str]]:
    """The exit status and what to print, from what pip-audit printed."""
    try:
        found: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (errors.strip() or "it printed nothing").splitlines()[-1]
        return 2, [f"{CANNOT}the database {service} cannot be reached from here. pip-audit: {last}"]
    known = [one for one in found if "vulns" in one]
    missing = [one["name"] for one in found if "vulns" not in one]
    lines = [
        f"{one['name']} {one['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for one in known
        for flaw in one["vulns"]
    ]
    if not known:
        return 2, [f"{CANNOT}the database {service} knows none of the {len(found)} packages, so it is not at hand here"]
    if missing:
        lines.append(f"{CANNOT}{service} does not know {', '.join(missing)}")
    if any(one["vulns"] for one in known):
        return 1, lines
    return (2 if missing else 0), [*lines, f"{service}: {len(known)} packages have no known vulnerability"]


def _own_tool() -> Path:
    """pip-audit from an environment of its own."""
    venv = ROOT / ".versions" / "audit"
    tool = venv / "bin" / "pip-audit"
    if not tool.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        installed = subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "pip-audit"])
        if installed.returncode:
            print(f"{CANNOT}pip-audit could not be installed")
            sys.exit(2)
    return tool


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
