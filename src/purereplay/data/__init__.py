"""Sources of samples: datasets, label noise, episodes, streams. The lowest room, which imports no other."""
