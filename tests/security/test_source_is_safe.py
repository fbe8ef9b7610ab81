"""The source reads data and runs none of it: calls that can run what they read need a reason."""

import ast
from pathlib import Path

import pytest

import labelwise

ROOT = Path(labelwise.__file__).parent

# Why each of these does not read code from a folder or a file that a user opens. (file, call): reason
ALLOWED = {
    ("shards/ray/serialize.py", "pickle.loads"): "between this process and its workers, over Ray",
    ("shards/factories.py", "torch.load"): "a model that this process sent to its worker, over Ray",
    ("shards/devices.py", "torch.load"): "bytes that this process made a line earlier, to copy a value to a device",
    ("cli/__init__.py", "exec"): "an empty text, to load the module of the interpreter's traceback",
    ("__init__.py", "importlib.import_module"): "modules of this package, by a table in the source",
    ("project/__init__.py", "importlib.import_module"): "modules of this package, by a table in the source",
    ("reproduce/registry.py", "importlib.import_module"): "modules of this package, by a list in the source",
    ("verify/compare/__init__.py", "importlib.import_module"): "modules of this package",
    ("verify/run.py", "importlib.import_module"): "the reference of a strategy that is registered",
    ("callbacks.py", "importlib.import_module"): "named by the user on the command line, --callback",
    ("cli/verify.py", "importlib.import_module"): "named by the user on the command line",
    (
        "project/data/torch_encoders.py",
        "importlib.import_module",
    ): "named by the user; see encoder_of in encoders.py",
    (
        "bench/models/registry.py",
        "importlib.import_module",
    ): "estimators of four packages, or of a module loaded already",
}
ALWAYS = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "runpy.run_path", "runpy.run_module"),
    *("shelve.open", "marshal.load", "marshal.loads", "joblib.load", "pandas.read_pickle", "pd.read_pickle"),
    *("importlib.import_module", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all"),
    *(f"{module}.{name}" for module in ("pickle", "cloudpickle", "dill") for name in ("load", "loads", "Unpickler")),
}


def _name(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def refused(text):
    """The calls in a source that can run what they read."""
    tree, found = ast.parse(text), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("pickle", "cloudpickle", "dill", "joblib", "shelve"):
            found.append(f"{node.module}.{node.names[0].name}")  # import the module, so that its calls can be seen
        if not isinstance(node, ast.Call):
            continue
        name = _name(node.func)
        given = {one.arg: one.value.value if isinstance(one.value, ast.Constant) else ... for one in node.keywords}
        wrong = name in ALWAYS
        wrong |= name in ("torch.load", "torch.jit.load") and given.get("weights_only") is not True
        wrong |= given.get("allow_pickle", False) is not False or given.get("trust_remote_code", False) is not False
        wrong |= given.get("shell", False) is not False
        if wrong:
            found.append(name)
    return found


def test_no_call_can_run_what_it_reads():
    found = {
        (str(path.relative_to(ROOT)), call)
        for path in sorted(ROOT.rglob("*.py"))
        for call in refused(path.read_text(encoding="utf-8"))
    }
    assert found - set(ALLOWED) == set(), "each of these runs what it reads, or needs a reason in ALLOWED"
    assert set(ALLOWED) - found == set(), "these are no longer in the source"


@pytest.mark.parametrize(
    "text",
    [
        "pickle.load(f)",
        "import pickle\npickle.Unpickler(f)",
        "from pickle import load",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=flag)",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "yaml.load(f)",
        "eval(text)",
        "subprocess.run(x, shell=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_check_sees_each_of_them(text):
    assert refused(text)


@pytest.mark.parametrize(
    "text", ["np.load(f)", "torch.load(f, weights_only=True)", "yaml.safe_load(f)", "model.eval()", "json.loads(t)"]
)
def test_the_check_lets_data_be_read(text):
    assert not refused(text)
