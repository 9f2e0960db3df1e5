"""What the tests of hostile input share: a pipeline and a live worker."""
