"""How well and how cheaply registries find what is the same, on labelled data: `python -m bench.registry DATA`."""
