"""Every error Labelwise raises on purpose: one family, each text says what was expected, found and what to do."""


class LabelwiseError(Exception):
    """The family: `except lw.errors.LabelwiseError` catches every error raised on purpose."""


class ArgumentError(LabelwiseError, ValueError):
    """An argument has a value that cannot be used: an unknown name, a wrong type, a wrong range."""


class NeedError(LabelwiseError, ValueError):
    """A strategy needs numbers about rows that were not given and cannot be computed."""


class RowError(LabelwiseError, ValueError):
    """Row ids or the shapes of arrays by row do not fit together."""


class BudgetError(LabelwiseError, ValueError):
    """The number of rows asked for is not possible."""


class MemoryLimitError(LabelwiseError, MemoryError):
    """A limit on memory is too small; `smallest` is the smallest that works, in bytes."""

    def __init__(self, text: str, smallest: int):
        MemoryError.__init__(self, text)
        self.smallest = smallest

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.smallest)  # from a worker to who asked


class NumericsError(LabelwiseError, ValueError):
    """A value is NaN, infinite or not a probability where it has to be one."""


class LabelError(LabelwiseError, ValueError):
    """A label is outside the classes, or the labels given cannot train a model."""


class ModelError(LabelwiseError, ValueError):
    """A model cannot be read: no last linear layer found, an output of an unexpected form."""


class SourceError(LabelwiseError, ValueError):
    """A file of the pool cannot be read."""


class StoreError(LabelwiseError, RuntimeError):
    """What is stored on disk does not fit what was asked of it."""


class ClusterError(LabelwiseError, RuntimeError):
    """A cluster has no room for the workers that were asked for."""


class WorkerError(LabelwiseError, RuntimeError):
    """A worker raised an error that cannot be brought to the process that asked; the text is what it said."""


class ExtraError(LabelwiseError, ImportError):
    """An optional dependency is not installed; the text holds the pip line that installs it."""


def extra(module: str, name: str) -> ExtraError:
    """The error for `module` missing because extra `name` is not installed."""
    return ExtraError(
        f"This needs the package {module!r}, which is not installed. Install it with:\n"
        f'    pip install "labelwise[{name}]"'
    )
