"""The recipe: what to export, and how."""
