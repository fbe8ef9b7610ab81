"""Labelwise: choose which rows of an unlabelled pool are worth labelling, train on the answers, show what was saved."""

from labelwise import errors, strategies
from labelwise.keys import Key
from labelwise.loop import rounds
from labelwise.pool import Pool
from labelwise.recipes import Recipe
from labelwise.report.record import Record
from labelwise.select import Greedy, Scored, Selection, Strategy
from labelwise.session import Session
from labelwise.train import Mean, SklearnLearner, TorchLearner, Weighted

from labelwise.arrays import select  # isort: skip

__version__ = "0.1.0"
