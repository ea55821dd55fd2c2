"""Teachers: models that score the tokens a student has sampled."""
