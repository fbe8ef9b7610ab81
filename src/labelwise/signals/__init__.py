"""Signals: the numbers that a model gives for a row, such as probabilities, embeddings and gradients.

A strategy declares what it needs as frozen values (`spec.py`). `read.py` takes the union of all requests and makes
one sweep over the rows. `model/` reads outputs and embeddings, `draws/` several draws of the weights, `gradients/`
gradients of each row by all parameters. The model is left as it was found.
"""
