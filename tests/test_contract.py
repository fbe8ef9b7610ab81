"""Rules of the source: one-way imports, names from the glossary, chance from keys alone, and a light import."""

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import labelwise

SOURCE = Path(labelwise.__file__).parent
ROOT = Path(__file__).parents[1]
FILES = {
    path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")
}
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}
HEAVY = [
    "matplotlib",
    "sklearn",
    "scipy",
    "pandas",
    "polars",
    "narwhals",
    "pyarrow",
    "PIL",
    "fastapi",
    "uvicorn",
    "ray",
    "datasets",
]
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


def test_a_long_file_has_a_reason_in_the_architecture_page():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    long = {name for name in FILES if (SOURCE / name).read_text(encoding="utf-8").count("\n") > 500}
    section = page.split("## Why it is filed so")[1].split("## Chance")[0]
    assert long == set(re.findall(r"^\| `(\S+)` \|", section, re.MULTILINE))


# Words that meant several things, or only something here. The glossary has the field's words.
RETIRED = """
    door fence guard desk keeper said readout standing working renew kept held gathered room rings board walk drawn
    beside lesson taught evidence headroom cell heard told asked shown learnt marks packed aside behind
"""


def _words(name: str) -> set[str]:
    """The words of a name in snake case or camel case; "held out" is the field's."""
    return set(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("held_out", "").split("_"))


# Of these, the words that values have as plain English names: the cell of a table, the log evidence of a model.
OF_VALUES = {"cell", "evidence", "learnt", "shown", "packed", "asked", "told", "heard", "marks"}


# Each of these meant several things.
AMBIGUOUS = {"room", "walk", "kept", "held", "standing", "board"}


def _names(name: str, tree: ast.AST) -> Iterator[str]:
    """The names that a file gives: its own, and those of types, functions, arguments, attributes and variables."""
    yield from name.removesuffix(".py").split("/")
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=one) | ast.FunctionDef(name=one) | ast.AsyncFunctionDef(name=one):
                yield one
            case ast.arg(arg=one) | ast.Name(id=one, ctx=ast.Store()) | ast.Attribute(attr=one, ctx=ast.Store()):
                yield "_".join(_words(one) - OF_VALUES)


def test_names_are_the_words_of_the_field():
    """`docs/glossary.md` lists the words to use."""
    retired = set(RETIRED.split())
    found = [f"{name}: {one}" for name, tree in FILES.items() for one in _names(name, tree) if _words(one) & retired]
    assert not found, "\n".join(found)


def test_ambiguous_words_are_no_names_in_tests_benchmarks_and_scripts_either():
    """Names of tests are sentences, in which every word may stand."""
    found = []
    for path in sorted(path for folder in ("tests", "benchmarks", "scripts") for path in (ROOT / folder).rglob("*.py")):
        names = _names(path.name, ast.parse(path.read_text(encoding="utf-8")))
        found += [f"{path.name}: {one}" for one in names if not one.startswith("test_") and _words(one) & AMBIGUOUS]
    assert not found, "\n".join(found)


def _patched(tree: ast.AST) -> Iterator[str]:
    """What a test file sets of other objects, by `setattr` or `=`, under the full names of modules of labelwise."""
    modules = {
        alias.asname or alias.name.split(".")[0]: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("labelwise")
        for alias in node.names
    } | {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname
    }

    def full(node: ast.expr) -> str:
        first, _, rest = ast.unparse(node).partition(".")
        return ".".join(filter(None, (modules.get(first, first), rest)))

    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store()):
                yield full(node)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str(name)), _]):
                yield name
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[home, ast.Constant(value=str(name)), _]):
                yield f"{full(home)}.{name}"


def test_no_test_patches_a_constant_of_the_source():
    """What a test needs to be otherwise, such as a size or a time to wait, is an argument or a frozen tuning value."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name in _patched(ast.parse(path.read_text(encoding="utf-8"))):
            *home, last = name.split(".")
            if home and re.fullmatch(r"_?[A-Z][A-Z0-9_]*", last) and _is_module(".".join(home)):
                found.append(f"{path.name}: {name}")
    assert not found, "\n".join(found)


def _is_module(name: str) -> bool:
    """Whether this is a module of labelwise."""
    home = SOURCE.parent.joinpath(*name.split("."))
    return name.startswith("labelwise") and (home.is_dir() or home.with_suffix(".py").is_file())


# Private only by their look, or of torch.
OF_LIBRARIES = {"_make", "_replace", "_asdict", "_buffers", "_parameters", "_modules", "_version"}


def _private_names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Private names that a file defines, and those that it takes from objects other than its own or imports."""
    defined, taken = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=one) | ast.FunctionDef(name=one) | ast.Name(id=one, ctx=ast.Store()):
                defined.add(one)
            case ast.Attribute(attr=one, value=ast.Name(id="self" | "cls")):
                defined.add(one)
            case ast.Attribute(attr=one) | ast.alias(name=one):
                taken.add(one)
    return tuple({one for one in each if re.match(r"_[^_]", one)} for each in (defined, taken))


def test_no_package_reaches_into_the_private_state_of_another():
    packages: dict[str, tuple[set[str], set[str]]] = {}
    for name, tree in FILES.items():
        for all_of, new in zip(packages.setdefault(name.split("/")[0], (set(), set())), _private_names(tree)):
            all_of |= new
    assert "_fit" in packages["session"][0]
    for package, (defined, taken) in packages.items():
        of_others = set[str]().union(*(names for other, (names, _) in packages.items() if other != package))
        found = (taken - defined - OF_LIBRARIES) & of_others
        assert not found, f"{package} reads {sorted(found)}"


def _public_things() -> Iterator[tuple[str, Callable[..., object]]]:
    """Classes, functions and methods that the public modules give; no method that overrides a documented one.

    `tests/test_site.py` asks more of the names of `labelwise` itself.
    """
    modules = [(name, home) for name in labelwise.__all__ if inspect.ismodule(home := getattr(labelwise, name))]
    for name, home in (
        (f"{name}.{one}", getattr(module, one)) for name, module in modules for one in getattr(module, "__all__", ())
    ):
        if inspect.isfunction(home):
            yield name, home
        if inspect.isclass(home) and home.__module__.startswith("labelwise"):
            if not issubclass(home, Exception) and not getattr(home, "_is_protocol", False):  # these take no arguments
                yield name, home
            for one, value in vars(home).items():
                plain = getattr(value, "__func__", value)
                of_base = any(one in vars(base) for base in home.__mro__[1:])
                if inspect.isfunction(plain) and not one.startswith("_") and not of_base:
                    yield f"{name}.{one}", plain


def _undescribed(one: Callable[..., object]) -> list[str]:
    """Arguments of a function, or fields of a class, that its docstring does not describe."""
    text = "\n".join(inspect.getdoc(part) or "" for part in ((one, one.__init__) if inspect.isclass(one) else (one,)))
    listed = "".join(re.split(r"^(?:Args|Attributes):$", text, flags=re.MULTILINE)[1:])
    named = {
        name for line in re.findall(r"^ +(\w+(?:, \w+)*):", listed, flags=re.MULTILINE) for name in line.split(", ")
    }
    given = [argument for argument in inspect.signature(one).parameters if argument not in ("self", "cls")]
    if len(given) == 1 and f"`{given[0]}`" in text:  # the summary says what the only one is
        return []
    return [argument for argument in given if argument not in named]


def test_public_classes_and_functions_describe_their_arguments():
    found = {name: missing for name, one in _public_things() if (missing := _undescribed(one))}
    assert not found, "\n".join(f"{name}: {', '.join(missing)}" for name, missing in found.items())


def test_the_glossary_is_sorted_and_short():
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    words = [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:]
    assert words == sorted(set(words))
    assert 35 <= len(words) <= 60


@pytest.mark.slow
def test_no_keyword_catch_alls_no_overridden_methods_and_no_print_outside_the_command():
    for name, tree in FILES.items():
        for node in ast.walk(tree):
            if name == "train/parameters.py":  # scikit-learn's signatures
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                assert node.args.kwarg is None, (
                    f"{name}:{node.lineno} takes **{node.args.kwarg and node.args.kwarg.arg}"
                )
        called = {node.func.id: node.lineno for node in _calls(tree) if isinstance(node.func, ast.Name)}
        for node in ast.walk(tree):  # classes are abstract or final: only a constructor goes up
            if name in ("server/connections.py", "server/serve.py"):  # uvicorn's classes are extended by overriding
                continue
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
        # Of the processor, and as a share: neither other processes nor a slow machine must decide this.
        "import time\nstart = time.process_time()\nimport torch, numpy\ntorch_took = time.process_time() - start\n"
        "import labelwise\nlabelwise.select, labelwise.strategies.names()\n"
        "print((time.process_time() - start - torch_took) / torch_took)"
    )
    shares = []
    for _ in range(4):
        run = _python("-c", code)
        assert run.returncode == 0, run.stderr
        shares.append(float(run.stdout))
        if shares[-1] < 0.4:  # 0.3 when measured; with scikit-learn 1.2
            break
    assert min(shares) < 0.4, shares


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
