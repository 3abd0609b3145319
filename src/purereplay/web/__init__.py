"""Review page: a queue of doubtful labels in the browser, served on this machine by `purereplay review`."""
