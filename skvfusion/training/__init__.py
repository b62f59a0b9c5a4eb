"""The one engine under every torch estimator: a seeded skorch net, whole-batch indexing, losses and input scaling."""
