"""Export of a state's classifier to files that need no purereplay: the same arithmetic, written as one graph."""
