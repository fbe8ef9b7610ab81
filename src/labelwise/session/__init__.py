"""Session: `ask` for the rows to label next, `tell` their labels.

The session owns the pool, the ledger, the learner and the seed. Each answer is on disk before `tell` returns, and a
session that is loaded in a new process continues with the same picks.
"""

from labelwise.session.session import Session, SessionState

__all__ = ["Session", "SessionState"]
