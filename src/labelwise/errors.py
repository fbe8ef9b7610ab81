"""The errors that Labelwise raises on purpose. Each text says what was expected, what was found and what to do."""

import json
import sys
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called Labelwise: the user's own, however deep inside this is found."""
    frames = [sys._getframe(1)]
    while frames[-1].f_back is not None:
        frames.append(frames[-1].f_back)
    # The outermost frame of Labelwise: in between there may be others, of torch or contextlib.
    ours = [at for at, one in enumerate(frames) if str(one.f_globals.get("__name__")).partition(".")[0] == "labelwise"]
    warnings.warn(text, category, stacklevel=ours[-1] + 3)


class LabelwiseError(Exception):
    """Base class: `except lw.errors.LabelwiseError` catches every error that Labelwise raises on purpose."""


class ArgumentError(LabelwiseError, ValueError):
    """An argument cannot be used: an unknown name, a wrong type, a value out of range."""


class NeedError(LabelwiseError, ValueError):
    """A strategy needs numbers about rows that were not given and cannot be computed."""


class RowError(LabelwiseError, ValueError):
    """Row ids or the shapes of arrays by row do not fit together."""


class BudgetError(LabelwiseError, ValueError):
    """More rows, or fewer, were asked for than there can be."""


class MemoryLimitError(LabelwiseError, MemoryError):
    """A memory limit is too small; `smallest` is the smallest that works, in bytes."""

    def __init__(self, text: str, smallest: int):
        MemoryError.__init__(self, text)
        self.smallest = smallest

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.smallest)  # so that a worker can send it


class NumericsError(LabelwiseError, ValueError):
    """A value is NaN or infinite, or is not a probability although it has to be one."""


class LabelError(LabelwiseError, ValueError):
    """A label is none of the classes, or the labels cannot train a model."""


class ModelError(LabelwiseError, ValueError):
    """A model cannot be read: it has no last linear layer, or its output has an unexpected form."""


class SourceError(LabelwiseError, ValueError):
    """A file of the pool cannot be read."""


class StoreError(LabelwiseError, RuntimeError):
    """A stored file or folder is missing, damaged, or belongs to something else."""


class ClusterError(LabelwiseError, RuntimeError):
    """A cluster has not enough resources for the workers."""


class WorkerError(LabelwiseError, RuntimeError):
    """A worker raised an error of another kind; the text is its message."""


class ExtraError(LabelwiseError, ImportError):
    """An optional dependency is not installed; the text has the pip command that installs it."""


def install_command(name: str) -> str:
    """The pip command that adds the extra `name`, from where this Labelwise was installed: clone, wheel or index."""
    try:
        origin = json.loads(distribution("labelwise").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # run from its source, without an installation
        root = Path(__file__).resolve().parents[2]
        origin = {"url": root.as_uri(), "dir_info": {}} if (root / "pyproject.toml").is_file() else {}
    url = origin.get("url", "")
    path = Path(url2pathname(urlsplit(url).path)) if url.startswith("file:") else None
    if path is not None and path.is_dir():
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f'pip install {editable}"{path}[{name}]"'
    if path is not None and path.is_file():
        return f'pip install "labelwise[{name}] @ {url}"'
    if "vcs_info" in origin:
        return f'pip install "labelwise[{name}] @ {origin["vcs_info"]["vcs"]}+{url}"'
    return f'pip install "labelwise[{name}]"'


def extra(module: str, name: str, what: str = "This") -> ExtraError:
    """Return the error for a `module` that is missing, or fails; the extra `name` installs it, and `what` needs it.

    Args:
        module: the module that cannot be imported.
        name: the extra of Labelwise that installs it.
        what: what needs it, at the beginning of the message.
    """
    failed, why, how = sys.exception(), "is not installed", "Install it with:"
    if isinstance(failed, ImportError) and not isinstance(failed, ModuleNotFoundError):
        why, how = f"is installed but cannot be imported ({failed})", "Install a newer version of it, or all again:"
    return ExtraError(f"{what} needs the package {module!r}, which {why}. {how}\n    {install_command(name)}")


class TrainingWarning(UserWarning):
    """A fit has hardly begun to learn, or keeps weights far behind its last ones on the labelled rows."""
