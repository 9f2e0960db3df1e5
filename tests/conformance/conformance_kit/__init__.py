"""What the conformance scenarios stand on: the table of rows, a scripted model, drivers, pipelines.

It is importable by worker processes too, which find the pipelines here by name.
"""
