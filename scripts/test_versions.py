"""Run the quick tests with the lowest versions that pyproject.toml allows, or with the newest of everything.

    python scripts/test_versions.py lowest --python python3.12
    python scripts/test_versions.py newest --torch 2.13.0 tests/pool tests/io
    make test-newest PYTHON=python3.13 TORCH=2.13.0

uv makes an environment in .versions/. "Lowest" is the lowest allowed version that has a wheel for that Python; what
those packages need themselves, and the tools that test, are the newest that fit. torch is the CPU build of PyTorch's
own index; with --torch it is that version from wherever pip finds wheels, for a machine that does not reach that index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "bench,app,postgres,ray"  # encoders is left out: its weights are 100 MB
FRAMES = ("pandas", "polars")  # of dev, but users hold them: they are of the lowest or newest version too
LINT = ("labelwise[", "ruff", "mypy", "types-pyyaml", "import-linter")  # of dev, but no tests use them
NO_INDEX = (
    "Where PyTorch's index is out of reach, name a version that pip finds: --torch 2.13.0, or make ... TORCH=2.13.0"
)
QUICK = "not slow and not browser and not postgres and not ray"


def main(argv: list[str]) -> int:
    """Install, print the versions, test; the exit status of the tests, or of what failed before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", choices=("lowest", "newest"))
    parser.add_argument("--python", default=sys.executable, help="the Python to test; this one if not given")
    parser.add_argument("--torch", metavar="VERSION", help="this version of torch, whatever the bounds say")
    parser.add_argument("--install-only", action="store_true", help="install and print the versions, and stop")
    parser.add_argument("tests", nargs="*", help="what pytest runs; everything quick if not given")
    given = parser.parse_intermixed_args(argv)

    uv = shutil.which("uv") or _own_uv()
    venv = ROOT / ".versions" / f"{given.versions}-{Path(given.python).name}"
    python = venv / "bin" / "python"
    shutil.rmtree(venv, ignore_errors=True)
    _run(uv, "venv", "-q", "--python", given.python, venv)
    install = [uv, "pip", "install", "-q", "--python", python, "--only-binary", ":all:", "--no-binary", "labelwise"]
    if given.torch is None:
        install += ["--torch-backend", "cpu"]
    else:
        pinned = venv / "torch.txt"
        pinned.write_text(f"torch=={given.torch}\n")
        install += ["--overrides", pinned]
        for place in os.environ.get("PIP_FIND_LINKS", "").split():  # uv does not read pip's settings
            install += ["--find-links", place]
    lowest = given.versions == "lowest"
    wanted = ["--resolution", "lowest-direct" if lowest else "highest", "-e", f"{ROOT}[{EXTRAS}]", *frames()]
    _run(*install, *wanted, hint="" if given.torch else NO_INDEX)
    # The tools, beside what is installed: a tool that needs a newer version of it comes in an older one.
    installed = venv / "installed.txt"
    installed.write_text(re.sub(r"(?m)^(-e |labelwise ).*\n", "", _output(uv, "pip", "freeze", "--python", python)))
    _run(*install, "--constraints", installed, *tools())

    print(f"{given.versions} versions, {_output(python, '--version').strip()}", flush=True)
    frozen = dict(
        re.findall(r"^([\w.-]+)==(\S+)", _output(uv, "pip", "freeze", "--python", python), flags=re.MULTILINE)
    )
    for name in direct():
        print(f"  {name} {frozen[name]}", flush=True)
    if given.install_only:
        return 0
    # Old packages warn about what newer ones have deprecated; that is no fault of theirs, and none of ours.
    warnings = ["-W", "default"] if lowest else []
    tests = [python, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", "-m", QUICK, *warnings, *given.tests]
    return subprocess.run(list(map(str, tests)), cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode


def tools() -> list[str]:
    """What the tests themselves need."""
    extras = _project()["optional-dependencies"]
    return [one for one in (*extras["dev"], *extras["e2e"]) if not one.startswith((*LINT, *FRAMES))]


def frames() -> list[str]:
    """The libraries of frames that the tests read, with their bounds."""
    return [one for one in _project()["optional-dependencies"]["dev"] if one.startswith(FRAMES)]


def direct() -> list[str]:
    """The names of the packages that pyproject.toml asks for, in the extras tested here and without one, and frames."""
    project = _project()
    listed = [
        frames(),
        project["dependencies"],
        *(project["optional-dependencies"][extra] for extra in EXTRAS.split(",")),
    ]
    return sorted({re.split(r"[\[<>=]", one)[0] for some in listed for one in some})


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _own_uv() -> Path:
    """uv from an environment of its own."""
    venv = ROOT / ".versions" / "uv"
    if not (venv / "bin" / "uv").exists():
        _run(sys.executable, "-m", "venv", venv)
        _run(venv / "bin" / "python", "-m", "pip", "install", "-q", "uv")
    return venv / "bin" / "uv"


def _run(*words: str | Path, hint: str = "") -> None:
    done = subprocess.run(list(map(str, words)))
    if done.returncode:
        print(hint, file=sys.stderr)
        sys.exit(done.returncode)


def _output(*words: str | Path) -> str:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
