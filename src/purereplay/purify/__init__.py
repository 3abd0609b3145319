"""From features and given labels to a probability of being clean."""
