"""First drafts of recipes: what a model, its examples and its checkpoint show of themselves."""
