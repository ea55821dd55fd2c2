"""Everything that tests share: what they play with, run against and compare with."""
