"""Tests of Eval Protocol that ours are about; pytest runs them as they are."""
