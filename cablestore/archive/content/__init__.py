"""Archives by content id: a store of datasets, its REST endpoint and its client."""
