"""A seeded simulator that runs the product's own steps, decision, scripts and SQL statements under faults."""
