"""Whether a recipe can be used in a project: tried on a few made-up rows, before anybody labels anything."""

from __future__ import annotations

from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.project.loop.model import head_learner
from labelwise.project.settings import Settings
from labelwise.rng import Key
from labelwise.session import Session

_ROWS, _COLUMNS = 48, 4


def check_recipe(settings: Settings) -> None:
    """Raise ArgumentError for a recipe that cannot choose two batches with the project's own model."""
    x_ND = Key(0).fold("recipe").numpy().standard_normal((_ROWS, _COLUMNS)).astype("float32")
    regress = settings.task == "regress"
    try:
        session = Session(
            x_ND,
            head_learner(_COLUMNS, 2, settings.task),
            settings.recipe,
            classes=None if regress else 2,
            task=settings.task,
            seed=settings.seed,
        )
        for _ in range(2):
            rows = session.ask(6).ids
            session.tell(rows, x_ND[rows, 0].astype(float) if regress else (x_ND[rows, 0] > 0).astype(int))
        session.ask(6)
    except LabelwiseError as error:
        raise ArgumentError(
            f"--recipe {settings.recipe}: it cannot be used with the model of a project, a linear layer on the "
            f"features. {error}"
        ) from error
