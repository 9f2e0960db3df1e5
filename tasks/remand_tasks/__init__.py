"""Executes pipelines on Celery: the tasks, and the state they stand on (ledger, attempt records, vault)."""
