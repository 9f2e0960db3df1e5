"""Registries in the ledger: entries and clusters, planning of blocks, application of what was proposed."""
