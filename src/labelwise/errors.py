"""The errors that Labelwise raises on purpose. Each text says what was expected, what was found and what to do."""


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


def extra(module: str, name: str) -> ExtraError:
    """Return the error for a missing `module` that the extra `name` installs."""
    return ExtraError(
        f"This needs the package {module!r}, which is not installed. Install it with:\n"
        f'    pip install "labelwise[{name}]"'
    )
