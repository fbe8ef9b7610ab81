"""Predictions in words: how many labels can be taken from the model, and how many of them may be wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.project.predict.predictions import Predictions


def accepted_sentences(found: Predictions, share: float) -> list[str]:
    """Rows to accept, expected errors with their interval, and rows that stay for people."""
    accepted = found.accepted
    assert accepted is not None, "predictions of classes"
    people = sum(label is not None for label in found.labels)
    rest = len(found.ids) - people - accepted.rows
    lines = []
    if accepted.rows:
        lines.append(
            f"accept: {accepted.rows:,} labels at {_percent(share)} errors; about {accepted.expected:.1f} of them are "
            "wrong by the model's calibrated probabilities"
        )
        lines.append(_checked(found))
    else:
        lines.append(f"accept: none; no set of predictions has an error rate of {_percent(share)} or less")
    labelled = f"{people:,} have a label from people; " if people else ""
    lines.append(f"{labelled}{rest:,} {'is' if rest == 1 else 'are'} left for people")
    return lines


def margin_sentence(found: Predictions) -> str:
    """How far numbers may be off."""
    if found.margin is None:
        return "how far predictions may be off is not known: too few random test rows have a label"
    return f"nine of ten numbers lie within {found.margin:.3g} of their prediction, by the random test rows"


def _checked(found: Predictions) -> str:
    accepted = found.accepted
    assert accepted is not None
    if accepted.low is None or accepted.high is None:
        return "no random test row with a label is as certain: the errors are not checked"
    return (
        f"the random test rows allow {accepted.low:.0f} to {accepted.high:.0f} wrong labels (95 % interval): "
        f"{accepted.wrong} of {accepted.tests} test rows that are as certain are predicted wrongly"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
