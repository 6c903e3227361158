"""What towers have computed of the histories of contexts, stored between requests."""
