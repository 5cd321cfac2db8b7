"""Training of the reader: projections (`late`), then the networks over matches (`heads`). Never imported at run time."""
