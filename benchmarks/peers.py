"""Peers: other libraries on the same inputs, in an environment of their own.

`python benchmarks/peers.py setup [DIR]` makes the environment (default .peers), and inside it two more: numpy1 for
peers that fail with current NumPy, and battery for battery.py. The adapters below are called by measure.py with that
environment's Python; each gives a function of k that returns the picks. bayes.py and dynamical.py call the others by
themselves.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = ("scikit-learn", "scikit-activeml", "small-text", "baal", "backpack-for-pytorch")
ALONE = ("toma", "batchbald_redux")  # without what they ask for: notebooks, and a torchvision that breaks baal
OLDER = "numpy1"
# battery.py: the peers, what their users hold, and what Labelwise needs; apart, since baal brings a torchvision that
# breaks transformers.
BATTERY = "battery"
BATTERY_PACKAGES: tuple[str, ...] = (
    "scikit-learn<1.8",  # modAL cannot be used with newer ones
    "scikit-activeml",
    "small-text",
    "modAL-python",
    "pandas",
    "pyarrow",
    "pillow",
)
BATTERY_PACKAGES += ("lightgbm", "transformers<5", "datasets<5", "typer", "pyyaml")
# small-text cannot be used with transformers 5.
BATTERY_PACKAGES += ("skorch>=1.2",)  # modAL asks for 0.9.0, which needs pkg_resources, gone from setuptools
OLDER_PACKAGES = ("numpy<2", "scikit-learn<1.6", "bmdal_reg")
DEFAULT = Path(".peers")

Arrays = dict[str, np.ndarray]
Run = Callable[[int], Any]


def setup(folder: Path) -> int:
    """Make the environment and install each peer; how many failed. torch comes first, pinned, to get a CPU build."""
    root = Path(__file__).resolve().parent.parent
    venv.create(folder, with_pip=True)
    pip = [python_of(folder), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    pinned = [*pip, "-c", str(root / "constraints.txt")]
    torch = next(line for line in (root / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    if subprocess.run([*pinned, torch, "numpy"]).returncode:
        print(f"could not install {torch}; no peer was installed")
        return len(PACKAGES) + len(BATTERY_PACKAGES)
    failed = 0
    for package in PACKAGES:
        # A peer that cannot live with our tested versions gets its own, but torch stays as it is.
        fine = (
            not subprocess.run([*pinned, package]).returncode or not subprocess.run([*pip, torch, package]).returncode
        )
        failed += _report(package, fine)
    for package in ALONE:
        failed += _report(package, not subprocess.run([*pip, "--no-deps", package]).returncode)
    venv.create(folder / BATTERY, with_pip=True)
    battery = [python_of(folder / BATTERY), *pip[1:]]
    for package in BATTERY_PACKAGES:
        failed += _report(package, not subprocess.run([*battery, torch, package]).returncode)
    venv.create(folder / OLDER, with_pip=True)
    older = [python_of(folder / OLDER), *pip[1:]]
    return failed + _report(OLDER_PACKAGES[-1], not subprocess.run([*older, torch, *OLDER_PACKAGES]).returncode)


def _report(package: str, fine: bool) -> int:
    """1 for a package that could not be installed, which is said."""
    print(f"{package}: {'installed' if fine else 'could not be installed; it will be reported as absent'}")
    return int(not fine)


def python_of(folder: Path) -> str:
    """The Python of an environment."""
    return str(folder.absolute() / "bin" / "python")


def version(name: str) -> str:
    """The installed version of a peer, or PackageNotFoundError."""
    return importlib.metadata.version(name)


def _fixed(probs: np.ndarray) -> Any:
    """A scikit-activeml classifier that answers with given probabilities."""
    base: Any = importlib.import_module("skactiveml.base").SkactivemlClassifier

    class Fixed(base):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
            return self

        def predict_proba(self, X: Any) -> np.ndarray:
            return probs

    return Fixed(classes=list(range(probs.shape[1])))


def _skactiveml_badge(case: Any, arrays: Arrays) -> Run:
    pool: Any = importlib.import_module("skactiveml.pool")
    model, y = _fixed(arrays["probs"]), np.full(case.n, np.nan)
    return lambda k: pool.Badge(random_state=0).query(arrays["embedding"], y, model, fit_clf=False, batch_size=k)


def _skactiveml_uncertainty(case: Any, arrays: Arrays) -> Run:
    pool: Any = importlib.import_module("skactiveml.pool")
    method = {"confidence": "least_confident", "margin": "margin_sampling", "entropy": "entropy"}[case.strategy]
    model, y, X = _fixed(arrays["probs"]), np.full(case.n, np.nan), np.zeros((case.n, 1), np.float32)
    query = pool.UncertaintySampling(method=method, random_state=0).query
    return lambda k: query(X, y, model, fit_clf=False, batch_size=k)


def _skactiveml_features(case: Any, arrays: Arrays) -> Run:
    pool: Any = importlib.import_module("skactiveml.pool")
    y = np.full(case.n, np.nan)
    strategy = {
        "kcenter": lambda: pool.CoreSet(random_state=0),
        "typiclust": lambda: pool.TypiClust(random_state=0, k=20),
        "probcover": lambda: pool.ProbCover(random_state=0, n_classes=10),
    }[case.strategy]
    return lambda k: strategy().query(arrays["embedding"], y, batch_size=k)


def _sklearn_badge(case: Any, arrays: Arrays) -> Run:
    """kmeans_plusplus on gradients that are built in full; one trial a pick, as BADGE draws."""
    cluster: Any = importlib.import_module("sklearn.cluster")

    def run(k: int) -> Any:
        left_NC = arrays["probs"].copy()
        left_NC[np.arange(case.n), left_NC.argmax(1)] -= 1
        gradient = (left_NC[:, :, None] * arrays["embedding"][:, None, :]).reshape(case.n, -1)
        return cluster.kmeans_plusplus(gradient, k, random_state=0, n_local_trials=1)[1]

    return run


def _small_text_kcenter(case: Any, arrays: Arrays) -> Run:
    coresets: Any = importlib.import_module("small_text.query_strategies.coresets")
    labelled, free = np.array([0]), np.arange(1, case.n)
    return lambda k: coresets.greedy_coreset(
        arrays["embedding"], free, labelled, k, distance_metric="euclidean", batch_size=10_000
    )


def _baal_uncertainty(case: Any, arrays: Arrays) -> Run:
    heuristics: Any = importlib.import_module("baal.active.heuristics")
    name = {"confidence": "Certainty", "margin": "Margin", "entropy": "Entropy"}[case.strategy]
    return lambda k: getattr(heuristics, name)()(arrays["probs"])[:k]


ADAPTERS: dict[tuple[str, str], Callable[[Any, Arrays], Run]] = {
    ("scikit-activeml", "badge"): _skactiveml_badge,
    ("scikit-activeml", "kcenter"): _skactiveml_features,
    ("scikit-activeml", "typiclust"): _skactiveml_features,
    ("scikit-activeml", "probcover"): _skactiveml_features,
    ("scikit-activeml", "confidence"): _skactiveml_uncertainty,
    ("scikit-activeml", "margin"): _skactiveml_uncertainty,
    ("scikit-activeml", "entropy"): _skactiveml_uncertainty,
    ("scikit-learn", "badge"): _sklearn_badge,
    ("small-text", "kcenter"): _small_text_kcenter,
    ("baal", "confidence"): _baal_uncertainty,
    ("baal", "margin"): _baal_uncertainty,
    ("baal", "entropy"): _baal_uncertainty,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the environment of the peers.")
    parser.add_argument("command", choices=["setup"])
    parser.add_argument("folder", type=Path, nargs="?", default=DEFAULT)
    sys.exit(1 if setup(parser.parse_args().folder) else 0)
