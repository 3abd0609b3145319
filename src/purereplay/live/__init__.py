"""A learner in use on real data: its state folder, the loop of `learn`, predictions, audit and corrections."""
