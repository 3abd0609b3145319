"""Networks, views, losses and the engine that trains them."""
