"""Published recommenders, unedited: trained for a few steps, exported, served, compared."""
