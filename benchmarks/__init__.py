"""Scripts that reproduce the tables of the papers and measure speed; see README.md in this folder."""
