"""Which sheets of a table are run at a setting, on what device, and about how long that takes."""

from __future__ import annotations

from dataclasses import replace

from labelwise.errors import ArgumentError, SourceError
from labelwise.reproduce.registry import Setting, device_of
from labelwise.reproduce.tables import PaperTable, Sheet, sized
from labelwise.reproduce.times import cores, of_run

# Images a second in training, on one H200 with captured steps and on one CPU core: guesses of the right size, for what
# was not measured at its scale and on its device (paper_times.py).
RATES: dict[str, tuple[float, float]] = {
    "lenet5": (1e5, 4e3),
    "tutorial_cnn": (2e5, 3e3),
    "vgg11": (5e4, 60.0),
    "vgg16": (2.5e4, 30.0),
    "resnet18": (2e4, 20.0),
    "bayesian_resnet18": (1e4, 20.0),
    "mlp": (3e5, 2e4),
}
_WIDE = 64


def chosen(table: PaperTable, setting: Setting) -> tuple[list[Sheet], list[str]]:
    """The sheets to run at a setting, and what cannot be run since its data are not there."""
    wanted = [name.lower() for name in setting.only]
    sheets = [one for one in table.sheets if not wanted or _names(one) & set(wanted)]
    if not sheets:
        names = dict.fromkeys(name for one in table.sheets for name in (one.row, one.column) if name)
        raise ArgumentError(
            f"{table.name} has no row {', '.join(setting.only)}; --only takes one of: {'; '.join(names)}"
        )
    found: list[Sheet] = []
    missing: list[str] = []
    for one in sheets:
        try:
            fitted = sized(table.compatible(one) if setting.paper_compat else one, setting.scale)
        except SourceError as error:
            missing.append(f"Not run: {error}.")
            continue
        found.append(fitted if setting.seeds is None else replace(fitted, seeds=setting.seeds))
    if not found:
        raise SourceError(" ".join(missing))
    return found, missing


def seconds_of(table: PaperTable, setting: Setting) -> tuple[float, str]:
    """About how long a table takes, as its runs took when they were measured on such a device, or else a guess; and
    which of the two, on what.
    """
    device = device_of(setting)
    total, guessed = 0.0, False
    for sheet in chosen(table, setting)[0]:
        known = of_run(table.name, setting.scale, device, sheet.name)
        guessed = guessed or known is None
        total += sheet.seeds * len(sheet.strategies) * (_guess(sheet, device) if known is None else known)
    where = f"on {cores(setting, device)}, {'a guess' if guessed else 'as measured'}"
    return total / (1 if device == "cuda" else setting.processes), where


def _guess(sheet: Sheet, device: str) -> float:
    """Seconds of one run: images to train on, at the most, by the rate of its network."""
    labels = sum(sheet.start + sheet.k * t for t in range(sheet.rounds + 1))
    rate = RATES[sheet.model.kind][0 if device == "cuda" else 1]
    width = sheet.model.parameters.get("width", _WIDE)
    rate *= (_WIDE / width) ** 1.5 if device == "cpu" else 1.0
    return float(labels * sheet.model.parameters["epochs"] / rate + 0.1 * (sheet.rounds + 1))


def _names(sheet: Sheet) -> set[str]:
    """What --only may call a sheet, in small letters."""
    return {name.lower() for name in (sheet.row, sheet.row.split(" (")[0], sheet.column, sheet.name)}
