"""Training of torch models: options, labelled data, the training loop and the learner."""
