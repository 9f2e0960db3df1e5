"""Measurements, printed as ratios against what one would write by hand. Never part of the tests."""
