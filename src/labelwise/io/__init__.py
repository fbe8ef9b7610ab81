"""Files and tables: atomic writes, locks, one reader and one encoder of tables."""
