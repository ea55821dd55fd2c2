"""Build the documentation site: `make docs` runs these modules."""
