"""Teachers, which score the tokens that a student has sampled."""
