"""Recommend: which strategy to use in a situation, by the kept records of benchmarks.

`findings.json` holds the numbers, a rule chooses from them, and `recipe="recommended"` asks for the choice.
"""

from labelwise.recommend.findings import (
    GOAL,
    GOAL_BETTER,
    Confirmed,
    Findings,
    Tried,
    eligible,
    findings_of,
    read_findings,
    why_none,
)
from labelwise.recommend.situation import (
    RECOMMENDED,
    Choice,
    Recommendation,
    Situation,
    recipe_of,
    recommend,
    recommend_for_arrays,
    to_compare,
)

__all__ = [
    "GOAL",
    "GOAL_BETTER",
    "RECOMMENDED",
    "Choice",
    "Confirmed",
    "Findings",
    "Recommendation",
    "Situation",
    "Tried",
    "eligible",
    "findings_of",
    "read_findings",
    "recipe_of",
    "recommend",
    "recommend_for_arrays",
    "to_compare",
    "why_none",
]
