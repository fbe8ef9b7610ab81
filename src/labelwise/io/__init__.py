"""Files and tables: atomic writes, locks, append logs, checksums, one reader and one encoder of tables.

Everything that reaches a disk is written here, in one step and synced, so that a killed process leaves whole files.
"""
