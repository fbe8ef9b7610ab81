"""Pool: what there is. Rows by global id, and the ledger of what is known about them."""

from labelwise.pool.ledger import Entry, Ledger
from labelwise.pool.pool import Pool
from labelwise.pool.source import Source

__all__ = ["Entry", "Ledger", "Pool", "Source"]
