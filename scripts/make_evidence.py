"""Write the part "Does it beat random?" of README.md and its picture from the records; --check only compares."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from labelwise.bench.report.recommendations import AGAINST, outcomes, over_data_sets, read_run_curves
from labelwise.io.text import many, percent
from labelwise.recommend import GOAL, GOAL_BETTER, Findings, Situation, Tried, read_findings, recommend, why_none
from labelwise.recommend.situation import SITUATIONS
from labelwise.report.savings_bars import Bar, alternative, png
from labelwise.stats.curves import Curves
from labelwise.stats.savings import labels_saved

ROOT = Path(__file__).parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "pictures" / "savings.png"
BEGIN, END = "<!-- evidence: written by scripts/make_evidence.py -->", "<!-- end of evidence -->"
FOLDER, SITUATION = "core", "network"
COLUMNS = ("what you have", "recommended", "labels saved, median (range)", "better than random", "below random")


def bars(found: Findings) -> list[Bar]:
    """The recipe on each data set that counts, the most labels saved first; confirmed where it can be."""
    folder = found.confirmed.records if found.confirmed else f"docs/results/{FOLDER}"
    recipe = found.confirmed.tried.strategy if found.confirmed else found.choice
    run = read_run_curves((ROOT / folder).parent, Path(folder).name)
    assert run is not None, "records are kept"
    sets = {name: curves for name, curves in run.experiments.items() if curves[AGAINST].metric.name == "accuracy"}
    if found.confirmed:
        verdicts = dict(zip(sets, over_data_sets(recipe, list(sets.values()))))
    else:
        verdicts = {name: one for name, curves in sets.items() for one in outcomes(curves) if one.strategy == recipe}
    shown = []
    for name, one in verdicts.items():
        curves = sets[name]
        saved = labels_saved(curves[recipe], curves[AGAINST])
        ends = f"{_last(curves[recipe])}     {_last(curves[AGAINST])}"
        shown.append(Bar(name.partition("/")[0], saved.share, saved.low, saved.high, one.found.outcome, ends))
    return sorted(shown, key=lambda bar: -bar.share)


def _last(curves: Curves) -> str:
    return curves.metric.text(float(curves.values_ST[:, -1].mean()))


def table(findings: dict[str, Findings]) -> str:
    """A row for each situation that has records."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---:|---:|---:|"]
    for name, title in SITUATIONS.items():
        if name in findings:
            found = findings[name]
            tried = chosen(found)
            recipe = f"`{tried.strategy if tried else AGAINST}`{' †' if found.confirmed else ''}"
            lines.append("| " + " | ".join([title, recipe, *_numbers(tried)]) + " |")
    return "\n".join(lines)


def chosen(found: Findings) -> Tried | None:
    """The numbers of what is recommended, confirmed ones where there are any; None for random."""
    if found.confirmed is not None:
        return found.confirmed.tried
    return next((one for one in found.tried if one.strategy == found.choice), None)


def _numbers(tried: Tried | None) -> list[str]:
    if tried is None:
        return ["0 % *", "–", "–"]
    span = f" ({percent(tried.low)} to {percent(tried.high)})" if tried.sets > 1 else ""
    return [
        f"{percent(tried.saved)}{span}{'' if _saves_enough(tried) else ' *'}",
        f"{tried.better} of {tried.sets}{'' if _is_often_better(tried) else ' *'}",
        f"{tried.below} of {tried.sets}",
    ]


def goal(findings: dict[str, Findings]) -> str:
    """What a recommendation should reach, and whether all do; `_numbers` marks what does not."""
    found = [chosen(one) for one in findings.values()]
    every = all(one is not None and _saves_enough(one) and _is_often_better(one) for one in found)
    wanted = f"save {percent(GOAL)} at the median and be better on {GOAL_BETTER[0]} of {GOAL_BETTER[1]} experiments"
    return f"A recommendation should {wanted}, and be below random on none; " + (
        "every row does." if every else "what falls short has a *."
    )


def _saves_enough(tried: Tried) -> bool:
    return tried.saved >= GOAL


def _is_often_better(tried: Tried) -> bool:
    return tried.better * GOAL_BETTER[1] >= tried.sets * GOAL_BETTER[0]


def content() -> tuple[str, bytes, str]:
    """The text for the README, the picture, and the digest of what the picture shows."""
    findings = read_findings()
    choice = findings[SITUATION].choice
    shown = bars(findings[SITUATION]) if choice != AGAINST else []
    tried = chosen(findings[SITUATION])
    name = tried.strategy if tried else AGAINST
    title = f"Labels that {name} saves, compared with random"
    digest = hashlib.blake2b(repr((title, shown)).encode(), digest_size=8).hexdigest()
    recipe = recommend(Situation()).recipe
    lead = _lead(findings[SITUATION])
    image = f"![{alternative(shown, title)}](docs/pictures/{PICTURE.name})\n\n" if shown else ""
    text = f"""{lead}

{image}{table(findings)}

{_small_print(findings)} {goal(findings)} For a network `"recommended"` is
`{recipe}`: [how it is chosen](docs/recommend.md), [all strategies](docs/results/core/report.md).
"""
    return text, png(shown, title, "last accuracy (%):\nthis, random") if shown else b"", digest


def _small_print(findings: dict[str, Findings]) -> str:
    """What was counted, and by which tests."""
    again = [found.confirmed for found in findings.values() if found.confirmed is not None]
    seeds = " or ".join(map(str, sorted({found.seeds for found in findings.values() if found.confirmed is None})))
    whole = (
        f"† The whole recipe, first batch included, with {again[0].seeds} seeds that did not choose it; *better* after "
        "Holm's correction over the data sets.\n"
        if again
        else ""
    )
    chosen_by = (
        f"{'Other rows: o' if again else 'O'}ne strategy, with the {seeds} seeds that chose it, so the best looks a "
        "little better than it is; *better* after Holm's correction over all strategies compared.\n"
        if seeds
        else ""
    )
    return f"{whole}{chosen_by}*Below* is by the single test."


def _lead(found: Findings) -> str:
    """The answer in two or three sentences."""
    tried, where = chosen(found), f"With a small network on {many(len(found.sets), 'data set')}"
    if tried is None:
        best = why_none(found, {})
        return (
            f"Not reliably. {where}, no strategy passed [the rule](docs/recommend.md), so random is recommended there"
            f"{best and '; most labels saved: '}{best}."
        )
    answer = "It depends on the data."
    if tried.better == tried.sets:
        answer = "On all data that were tried."
    elif _is_often_better(tried):
        answer = "On most data."
    elif not tried.better:
        answer = "Not measurably."
    by = f" ({found.confirmed.seeds} seeds that did not choose it)" if found.confirmed else ""
    fewer = f"{percent(abs(tried.saved))} {'fewer' if tried.saved >= 0 else 'more'} labels"
    return (
        f"{answer} {where}, `{tried.strategy}` needed {fewer} than random for the same accuracy, at the median. It was "
        f"significantly better over the whole curve on {tried.better or 'none'} of them, and below random on "
        f"{tried.below or 'none'}{by}."
    )


def stamped(picture: bytes, digest: str) -> bytes:
    """The picture with the digest inside, by which --check knows what it shows."""
    out, note = io.BytesIO(), PngInfo()
    note.add_text("content", digest)
    with Image.open(io.BytesIO(picture)) as image:
        image.save(out, "png", optimize=True, pnginfo=note)
    return out.getvalue()


def digest_of(path: Path) -> str:
    """The digest inside a picture; "" if there is none."""
    if not path.is_file():
        return ""
    with Image.open(path) as image:
        return str(image.info.get("content", ""))


def main() -> None:
    """Write README and picture, or with --check say whether they are out of date and fail."""
    text, picture, digest = content()
    old = README.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"README.md: the lines {BEGIN!r} and {END!r} are missing")
    new = f"{before}{BEGIN}\n{text}{END}{after}"
    if "--check" in sys.argv[1:]:
        if new != old or (picture and digest != digest_of(PICTURE)):
            raise SystemExit(f"README.md or {PICTURE.name} is out of date; run python scripts/make_evidence.py")
        return
    if new != old:
        README.write_text(new, encoding="utf-8")
        print(f"wrote {README}")
    if picture:
        PICTURE.write_bytes(stamped(picture, digest))
        print(f"wrote {PICTURE}")
    else:
        PICTURE.unlink(missing_ok=True)  # no page shows it


if __name__ == "__main__":
    main()
