"""Write, rebuild and check the rows of any catalog of views. This package does not import `cablestore.views`."""
