"""Ghost gradients: the gradient of each row's loss as two factors for each layer, never multiplied out.

`rules.py` has the registry of rules by layer type, one file for each family of layers has its rules, `pieces.py` the
algebra of factors, `capture.py` the hooks, and `fallback.py` the parameters without a rule.
"""

# Importing a family of layers registers its rules.
from labelwise.signals.gradients import attention, convolution, linear, normalisation
from labelwise.signals.gradients.capture import Capture
from labelwise.signals.gradients.pieces import Piece, Vector
from labelwise.signals.gradients.rules import RULES, Rule, register
from labelwise.signals.gradients.sketch import Tables

__all__ = [
    "RULES",
    "Capture",
    "Piece",
    "Rule",
    "Tables",
    "Vector",
    "attention",
    "convolution",
    "linear",
    "normalisation",
    "register",
]
