"""Losses against wrong labels, one per file: each replaces cross-entropy in crs, prs, mir or gdumb."""
