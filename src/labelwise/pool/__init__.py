"""Pool: the rows to choose from, each with a global id, and the ledger of what is known about them.

A `Pool` is read only. It gives inputs, names and known labels by id, from the sources in `sources/`: arrays,
frames, image folders, tables, torch and Hugging Face datasets. A `Ledger` is the append-only list of answers; which
rows are labelled and which are free is computed from it.
"""

from labelwise.pool.ledger import Entry, Ledger
from labelwise.pool.pool import Pool
from labelwise.pool.source import Source

__all__ = ["Entry", "Ledger", "Pool", "Source"]
