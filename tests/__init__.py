"""Tests of abut, in the rooms of the package; they share `tests.kit`."""
