"""Write requirements.lock: the versions of constraints.txt with the SHA-256 of every file that pip may install.

    python scripts/lock.py WHEELS

The files and their digests are those of the package index that uv is set to use. torch has several builds under one
version, and the tested one on Linux is for CPUs (2.13.0+cpu), which that index does not have: WHEELS is a folder with
such wheels, or the page of PyTorch's own index that lists them, and torch is locked to these alone: pip prefers a file
whose digest the index names, which would be the build with CUDA, and what that needs is not part of the tested set.

Added to the versions of constraints.txt are the tools that build the package (hatchling), and setuptools.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
# Beyond constraints.txt: setuptools, which torch asks for, and what builds labelwise.
MORE = (
    "setuptools==84.2.1",
    "editables==0.6",
    "hatchling==1.33.0",
    "tomlkit==0.15.2",
    "trove-classifiers==2026.9.21.13",
)
HEAD = (
    "# By scripts/lock.py: constraints.txt and what builds labelwise, with the SHA-256 of every file.\n"
    "# Install with `make setup LOCKED=1`. torch is a CPU build on Linux; see docs/release.md.\n"
)


def main(argv: list[str]) -> int:
    """Write the lock."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "wheels", help="CPU builds of torch: a folder of wheels, or the address of a page that lists them"
    )
    given = parser.parse_args(argv)
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("lock.py needs uv on the path: python -m pip install uv")

    pinned = CONSTRAINTS.read_text(encoding="utf-8") + "\n".join(MORE)
    command = [uv, "pip", "compile", "-q", "--no-deps", "--generate-hashes", "--no-header", "--no-annotate"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--python", sys.executable, "-"]
    done = subprocess.run(command, input=pinned, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return done.returncode
    locked = entries(done.stdout)

    version = locked["torch"][0]
    found = cpu_builds(given.wheels, version)
    if not found:
        sys.exit(f"{given.wheels} has no wheel of torch {version}+cpu with a SHA-256")
    locked["torch"] = (version, sorted(found))
    LOCK.write_text(HEAD + "".join(written(name, *locked[name]) for name in sorted(locked)), encoding="utf-8")
    print(f"{LOCK.name}: {len(locked)} packages, {sum(len(hashes) for _, hashes in locked.values())} files")
    return 0


def entries(text: str) -> dict[str, tuple[str, list[str]]]:
    """The version and the digests of each package of a lock."""
    found: dict[str, tuple[str, list[str]]] = {}
    for name, version, rest in re.findall(r"(?m)^([\w.-]+)==(\S+)((?: \\\n\s+--hash=sha256:[0-9a-f]{64})*)", text):
        found[plain(name)] = (version, sorted(re.findall(r"sha256:(\w+)", rest)))
    return found


def plain(name: str) -> str:
    """The one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def written(name: str, version: str, hashes: list[str]) -> str:
    """One package as pip reads it."""
    return f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{one}" for one in hashes) + "\n"


def cpu_builds(place: str, version: str) -> list[str]:
    """The digests of the CPU wheels of torch in a folder or on a page of links."""
    if "://" not in place:
        return [
            hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(place).glob(f"torch-{version}+cpu-*.whl")
        ]
    with urllib.request.urlopen(place, timeout=60) as answer:
        page = unquote(answer.read().decode())
    return re.findall(rf'torch-{re.escape(version)}\+cpu-[^"#]*\.whl#sha256=([0-9a-f]{{64}})', page)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
