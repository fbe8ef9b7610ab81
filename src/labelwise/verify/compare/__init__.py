"""Comparisons of the strategies with their slow references: a module for each family, found by being in this package.

A comparison is a function of a `Case` with the decorator `@checks("name of the strategy")`.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
