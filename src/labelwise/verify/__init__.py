"""Verify: every strategy against slow references from the papers, its invariances and the theorems, where it runs.

`verify.check_strategy` does the same for a strategy of your own; `labelwise verify` is the command.
"""

from labelwise.verify.invariances import INVARIANCES
from labelwise.verify.result import CheckFailed, NotApplicable, Outcome, Report
from labelwise.verify.run import check_strategy

__all__ = ["INVARIANCES", "CheckFailed", "NotApplicable", "Outcome", "Report", "check_strategy"]
