"""The nouns: keys, ids, checkpoints, runs, failures, policies. Data only, no behaviour."""
