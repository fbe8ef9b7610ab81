"""The meter: how good the model is and what was saved."""
