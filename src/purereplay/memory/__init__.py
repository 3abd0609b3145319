"""What a learner keeps: the delayed buffer D and the purified buffer P, preallocated and vectorised."""
