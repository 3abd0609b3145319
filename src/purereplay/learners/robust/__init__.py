"""Techniques against wrong labels, one a file: each changes the loss of whoever trains (crs, prs, mir, gdumb)."""
