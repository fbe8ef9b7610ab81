"""Numbers with a certificate: how far 300 measurements can be trusted to stand for 5,000 rows, by who chose them."""

import numpy as np
from sklearn.linear_model import LinearRegression

import labelwise as lw

rng = np.random.default_rng(0)
X = rng.standard_t(2.2, size=(5000, 6))  # heavy tails: a few rows decide some directions
y = X @ rng.normal(size=6) + rng.normal(size=5000)
best = LinearRegression().fit(X, y)

for strategy in ("random", "leverage", "bss"):
    away, ranges, good = [], [], 0
    for seed in range(10):
        picks = lw.select(strategy, k=300, embedding=X, seed=seed)
        fit = LinearRegression().fit(X[picks.ids], y[picks.ids], sample_weight=picks.weights)
        away.append(np.sqrt(np.mean((fit.predict(X) - best.predict(X)) ** 2)))
        found = lw.certificate(picks, embedding=X, rank=7)  # needs no label: it could be asked before measuring
        ranges.append(found.eigenvalues)
        good += found.good
    (low, _), (_, high) = np.min(ranges, axis=0), np.max(ranges, axis=0)
    print(f"{strategy}: {np.mean(away):.2f} from the fit to all rows; {good} of 10 certificates are good,")
    print(f"  and the mean square of any linear function is {low:.2f} to {high:.2f} times that over all rows")
