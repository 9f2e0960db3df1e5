"""Real services, real worker processes, and what has to hold whatever happens to them."""
