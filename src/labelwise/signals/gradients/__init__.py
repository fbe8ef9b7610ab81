"""Ghost gradients: the gradient of each row's loss from the two factors every layer has at hand, never built.

`rules.py` holds the registry (one rule for each layer type), one file for each family of layers holds its rules,
`pieces.py` the algebra of factors, `capture.py` the hooks and the check, `fallback.py` what has no rule.
"""

# Importing a family registers its rules.
from labelwise.signals.gradients import attention, convolution, embedding, linear, normalisation
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
    "embedding",
    "linear",
    "normalisation",
    "register",
]
