"""Training of the second look from licensed data sets. Never imported at run time."""
