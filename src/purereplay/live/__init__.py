"""A learner in daily use: a state folder that survives anything, fed from folders, lists and pipes."""
