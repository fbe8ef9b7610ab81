"""Label digits at the terminal. Stop at any time with Ctrl-D; run it again and it continues where you were."""

import sys

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import labelwise as lw

FOLDER = sys.argv[1] if len(sys.argv) > 1 else "digits-session"
digits = load_digits()
X = digits.data / 16


def ask(row: int) -> int:
    """Show a digit in characters until someone says which it is."""
    for line in digits.images[row].astype(int):
        print("".join(" .:-=+*#%@"[value * 9 // 16] * 2 for value in line))
    while not (answer := input("which digit? ").strip()).isdigit() or len(answer) > 1:
        print("a digit from 0 to 9, please")
    return int(answer)


model = LogisticRegression(max_iter=1000)
session = lw.Session(X, model, "recommended", classes=10, folder=FOLDER, resume=True, seed=0)
try:
    while True:
        for row in session.ask(5).ids.tolist():
            session.tell([row], [ask(row)])  # on disk before it returns
        print(f"{len(session.labelled)} labels; of all digits {session.score(X, digits.target):.0%} are recognised now")
except EOFError:
    print(f"\n{len(session.labelled)} labels are in {FOLDER}")
