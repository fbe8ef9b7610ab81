"""The rules of the house: one-way imports, small files, honest names, and a light import."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import labelwise

SOURCE = Path(labelwise.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = [
    "errors",
    "keys",
    "pool",
    "signals",
    "shards",
    "choose",
    "strategies",
    "arrays",
    "label",
    "train",
    "theory",
    "report",
    "recipes",
    "store",
    "session",
    "loop",
    "verify",
    "project",
    "page",
    "bench",
    "cli",
]
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
HEAVY = ["matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "PIL", "fastapi", "uvicorn", "ray", "datasets"]
HEAVY += ["sqlalchemy", "psycopg"]
CLI_HEAVY = ["torch", "numpy", *HEAVY]


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _room(path: Path) -> str | None:
    """The room of a file; None for the package's own `__init__` and `__main__`, which may see everything."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return None if parts[0] in ("__init__", "__main__") else parts[0]


def _imported(path: Path) -> set[str]:
    """The labelwise rooms a file imports, also inside functions."""
    return _targets(path.read_text(encoding="utf-8"), ("labelwise", *path.relative_to(SOURCE).parent.parts))


def _targets(text: str, package: tuple[str, ...]) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            targets = [f"{module}.{alias.name}" for alias in node.names]
        for target in targets:
            parts = target.split(".")
            if parts[0] == "labelwise":
                found.add(parts[1] if len(parts) > 1 else "")
    return found


def _python(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout)


def test_every_file_is_in_a_room():
    assert FILES
    for path in FILES:
        room = _room(path)
        assert room is None or room in ROOMS, f"{_name(path)} is in no room; the rooms are {ROOMS}"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_go_one_way(path: Path):
    room = _room(path)
    if room is None:
        return
    allowed = set(ROOMS[: ROOMS.index(room) + 1])
    for target in _imported(path):
        assert target != "", f"{_name(path)} imports the whole package; import from the room itself"
        if target == "__version__":
            continue
        assert target in allowed, f"{_name(path)} imports from {target}, which is to the right of {room}"


def test_the_check_of_imports_sees_every_spelling():
    """Otherwise the test above passes because it is blind."""
    text = (
        "import labelwise.loop\nfrom labelwise import cli\nfrom labelwise.bench.data import x\n"
        "from ..choose import nearest\nfrom .place import place\nfrom . import shards\nfrom .. import report\n"
        "def f():\n    from labelwise.theory import y\nimport labelwise\n"
    )
    found = _targets(text, ("labelwise", "shards"))
    assert found == {"loop", "cli", "bench", "choose", "shards", "report", "theory", ""}


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_files_are_short_and_named_for_what_is_in_them(path: Path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 300, f"{_name(path)} has {lines} lines"
    words = {part.lower() for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not words & FORBIDDEN_NAMES
    assert not {w for word in words for w in word.split("_")} & FORBIDDEN_NAMES


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_no_kwargs_no_super_and_a_docstring(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{_name(path)} does not say what is in it"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            where = f"{_name(path)}:{node.lineno}"
            assert node.args.kwarg is None, f"{where} takes **{node.args.kwarg.arg if node.args.kwarg else ''}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "super", f"{_name(path)}:{node.lineno} calls super()"
            if _room(path) not in ("cli", None):
                assert node.func.id != "print", f"{_name(path)}:{node.lineno} prints"


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_chance_comes_from_keys_alone(path: Path):
    """No global generator: seeds set or numbers drawn behind the user's back change his own programme."""
    if _room(path) == "keys":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            where = f"{_name(path)}:{node.lineno} calls {text}"
            assert text not in ("torch.manual_seed", "torch.seed", "random.seed", "np.random.seed"), where
            assert not text.startswith("random."), where
            assert not text.startswith("np.random.") or text.startswith("np.random.Generator"), where
            if text in ("torch.rand", "torch.randn", "torch.randperm", "torch.randint", "torch.multinomial"):
                assert any(keyword.arg == "generator" for keyword in node.keywords), where


@pytest.mark.parametrize("path", [f for f in FILES if _room(f) == "strategies" and f.stem != "__init__"], ids=_name)
def test_a_strategy_file_begins_with_name_and_source(path: Path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert ":" in text.splitlines()[0]


# --- import time -----------------------------------------------------------------------------------------------------


def test_importing_labelwise_imports_nothing_heavy():
    run = _python("-c", f"import sys, labelwise; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


def test_importing_labelwise_adds_little_to_torch():
    code = (
        # Of the processor, not of the clock: other processes must not decide this.
        "import time, torch, numpy\nstart = time.process_time()\nimport labelwise\n"
        "labelwise.select, labelwise.strategies.names()\nprint(time.process_time() - start)"
    )
    times = []
    for _ in range(4):
        run = _python("-c", code)
        assert run.returncode == 0, run.stderr
        times.append(float(run.stdout))
        if times[-1] < 0.3:
            break
    assert min(times) < 0.3, times


def test_the_room_of_the_command_does_not_import_torch():
    """`labelwise --help` answers in half a second: torch is imported inside commands."""
    run = _python("-c", f"import sys, labelwise.cli; print([m for m in {CLI_HEAVY!r} if m in sys.modules])")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


@pytest.mark.skipif(importlib.util.find_spec("labelwise.__main__") is None, reason="there is no command yet")
def test_help_is_quick_and_does_not_import_torch():
    before = os.times()
    run = _python("-m", "labelwise", "--help")
    after = os.times()
    assert run.returncode == 0, run.stderr
    assert "select" in run.stdout
    # Of the processor, since other tests run beside this one: a third of a second when measured.
    assert after.children_user - before.children_user + after.children_system - before.children_system < 1.0
    code = (
        "import runpy, sys\nsys.argv = ['labelwise', '--help']\n"
        "try:\n    runpy.run_module('labelwise', run_name='__main__')\nexcept SystemExit:\n    pass\n"
        f"print([m for m in {CLI_HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    assert _python("-c", code).stderr.strip().splitlines()[-1] == "[]"
