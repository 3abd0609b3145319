"""Filters: from features and given labels to clean probabilities."""
