"""Your own training loop in PyTorch, and where the labels stop paying: ask until a batch brings less than a point."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import labelwise as lw

digits = load_digits()
X, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
pool, test = slice(0, 1200), slice(1200, None)


def train(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None) -> None:
    """Any loop that trains in place; Labelwise reads signals from the model afterwards and leaves it as it is."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.2, total_steps=150)
    for _ in range(150):
        loss = nn.functional.cross_entropy(model(inputs), labels, label_smoothing=0.05)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


learner = lw.TorchLearner(lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)), fit=train)
session = lw.Session(X[pool], learner, "typiclust+badge", classes=10, seed=0)
before, now = 0.0, 0.5
while now - before > 0.01:
    picks = session.ask(40)
    session.tell(picks.ids, y[pool][picks.ids])
    before, now = now, session.score(X[test], y[test])
    print(f"{len(session.labelled)} labels: accuracy {now:.1%}")
