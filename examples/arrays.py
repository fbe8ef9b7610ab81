"""Arrays in, batch out: your own loop and your own records, with Labelwise choosing the rows and nothing else."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import labelwise as lw

X, y = load_digits(return_X_y=True)
pool, test = np.arange(1200), np.arange(1200, len(X))
answers: dict[int, int] = {}  # row number -> label: a column of your own database would do as well

picks = lw.select("typiclust", k=20, embedding=X[pool])  # there is no model yet
for _ in range(4):
    answers |= {row: int(y[row]) for row in picks.ids.tolist()}  # here people would answer
    known = np.array(sorted(answers))
    forest = RandomForestClassifier(random_state=0).fit(X[known], [answers[row] for row in known])
    print(f"{len(known)} labels: {forest.score(X[test], y[test]):.1%} of the test rows are right")

    free = np.setdiff1d(pool, known)
    picks = lw.select("margin", k=20, probs=forest.predict_proba(X[free]), ids=free)
