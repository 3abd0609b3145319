"""Where samples come from: datasets, label noise, episodes, streams. The lowest room: it imports no other."""
