"""Rules of the source: one-way imports, names from the glossary, chance from keys alone, and a light import."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import labelwise

SOURCE = Path(labelwise.__file__).parent
ROOT = Path(__file__).parents[1]
FILES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
HEAVY = ["matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "PIL", "fastapi", "uvicorn", "ray", "datasets"]
HEAVY += ["sqlalchemy", "psycopg"]
CLI_HEAVY = ["torch", "numpy", *HEAVY]
GLOBAL_SEEDS = ("torch.manual_seed", "torch.seed", "random.seed", "np.random.seed")
GLOBAL_DRAWS = ("torch.rand", "torch.randn", "torch.randperm", "torch.randint", "torch.multinomial")


def _python(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=timeout)


def _calls(tree: ast.AST):
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_packages_import_one_way():
    """The contract is in pyproject.toml, `[tool.importlinter]`."""
    pytest.importorskip("importlinter")
    run = _python("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert run.returncode == 0, run.stdout + run.stderr


def test_every_package_is_in_the_import_contract():
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8").split("layers = [")[1].split("]")[0]
    packages = {name.split("/")[0].removesuffix(".py") for name in FILES} - {"__init__", "__main__"}
    assert packages == {line.strip().strip('",').removeprefix("labelwise.") for line in contract.split() if line}


def test_every_file_has_a_docstring_and_a_name_that_says_something():
    for name, tree in FILES.items():
        assert ast.get_docstring(tree), f"{name} does not say what is in it"
        words = set(name.lower().removesuffix(".py").replace("/", "_").split("_"))
        assert not words & FORBIDDEN_NAMES, name


# Words that meant several things, or only something here. The glossary has the field's words.
RETIRED = """
    door fence guard desk keeper said readout standing working renew kept held gathered room rings board walk drawn
    beside lesson taught evidence headroom cell heard told asked shown learnt marks packed aside behind
"""


def _words(name: str) -> set[str]:
    """The words of a name in snake case or camel case."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_"))


def test_names_are_the_words_of_the_field():
    """Names of modules, types and functions; `docs/glossary.md` lists the words to use."""
    found = []
    for name, tree in FILES.items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        names = [*name.removesuffix(".py").split("/"), *(node.name for node in nodes)]
        found += [f"{name}: {one}" for one in names if _words(one) & set(RETIRED.split())]
    assert not found, "\n".join(found)


def test_the_glossary_is_sorted_and_short():
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:]
    assert words == sorted(words)
    assert 35 <= len(words) <= 60


@pytest.mark.slow
def test_no_keyword_catch_alls_no_overridden_methods_and_no_print_outside_the_command():
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                assert node.args.kwarg is None, (
                    f"{name}:{node.lineno} takes **{node.args.kwarg and node.args.kwarg.arg}"
                )
        called = {node.func.id: node.lineno for node in _calls(tree) if isinstance(node.func, ast.Name)}
        for node in ast.walk(tree):  # classes are abstract or final: only a constructor goes up
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "super()":
                assert node.attr == "__init__", f"{name}:{node.lineno} calls super().{node.attr}"
        assert "print" not in called or name.startswith(("cli/", "__")), f"{name}:{called['print']} prints"


def test_chance_comes_from_keys_alone():
    """No global generator: a seed set or a number drawn there changes the user's own program."""
    for name, tree in FILES.items():
        for node in _calls(tree):
            text, where = ast.unparse(node.func), f"{name}:{node.lineno}"
            if name == "rng.py":
                continue
            assert text not in GLOBAL_SEEDS, f"{where} calls {text}"
            assert not text.startswith("random."), f"{where} calls {text}"
            assert not text.startswith("np.random.") or text.startswith("np.random.Generator"), f"{where} calls {text}"
            if text in GLOBAL_DRAWS:
                assert any(keyword.arg == "generator" for keyword in node.keywords), f"{where} calls {text}"


# --- import time -----------------------------------------------------------------------------------------------------


def test_importing_labelwise_imports_nothing_heavy():
    run = _python("-c", f"import sys, labelwise; print([m for m in {HEAVY!r} if m in sys.modules])")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "[]"


@pytest.mark.slow
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


def test_the_command_package_does_not_import_torch():
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


def test_test_files_have_names_of_their_own():
    """pytest imports a test file by its name, so two files of one name cannot both run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
