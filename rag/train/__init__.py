"""Training of the reader: projections (`late`), then networks over matches (`heads`). Never imported at run time."""
