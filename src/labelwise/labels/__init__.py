"""Label: who knows the answers."""

from labelwise.labels.oracle import Known, Oracle, oracle_of

__all__ = ["Known", "Oracle", "oracle_of"]
