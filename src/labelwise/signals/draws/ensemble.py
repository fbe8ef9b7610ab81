"""Reader of an ensemble: each member is one draw, and the mean is the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import NeedError
from labelwise.signals.read import Reader
from labelwise.signals.spec import Embedding, LabelProbs, LogProbs, Prediction, Probs, Signal


class EnsembleReader:
    """Reads several models as one.

    Probs, LabelProbs and Prediction are means over the members, LogProbs holds the log of each member's Probs, K =
    members. Embedding is that of the first member, since embeddings of different networks have no common
    coordinates.
    """

    def __init__(self, members: Sequence[Reader]):
        self.members = tuple(members)
        self.takes_frame = any(getattr(member, "takes_frame", False) for member in self.members)

    @property
    def temperature(self) -> list[float] | None:
        """The temperatures of the members' LabelProbs; None unless all have one."""
        found = [getattr(member, "temperature", None) for member in self.members]
        return None if any(one is None for one in found) else [float(one) for one in found if one is not None]

    def gives(self, signal: Signal) -> bool:
        parts = tuple(Probs() if isinstance(part, LogProbs) else part for part in signal.stored())
        known = all(isinstance(part, Probs | LabelProbs | Prediction | Embedding) for part in parts)
        return known and all(member.gives(part) for member in self.members for part in parts)

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        wanted = dict.fromkeys(Probs() if isinstance(signal, LogProbs) else signal for signal in signals)
        shared = tuple(signal for signal in wanted if not isinstance(signal, Embedding))
        first = self.members[0].read(inputs, tuple(wanted))
        found = [first, *(member.read(inputs, shared) for member in self.members[1:])] if shared else [first]
        device = next(iter(first.values())).device if first else torch.device("cpu")  # members may differ
        columns: dict[Signal, Tensor] = {}
        for signal in signals:
            if isinstance(signal, LogProbs):
                columns[signal] = torch.stack([one[Probs()].to(device).log() for one in found], 1)
            elif isinstance(signal, Probs | LabelProbs | Prediction):
                columns[signal] = torch.stack([one[signal].to(device) for one in found]).mean(0)
            elif isinstance(signal, Embedding):
                columns[signal] = first[signal]
            else:
                raise NeedError(
                    f"an ensemble does not give {signal!r}; it gives Probs, LabelProbs, LogProbs and Embedding, or "
                    "Prediction if its members are regression models"
                )
        return columns
