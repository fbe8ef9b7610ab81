"""Session: `ask` for the rows to label next, `tell` their labels."""

from labelwise.session.session import Session, SessionState

__all__ = ["Session", "SessionState"]
