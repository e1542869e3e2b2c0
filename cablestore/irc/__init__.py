"""Chat logs of IRC clients, imported into a store."""
