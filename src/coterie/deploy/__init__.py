"""Real sites: a federation ready to run on Flower, and each site's own file with its data."""
