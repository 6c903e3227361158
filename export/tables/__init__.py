"""Plans and copies table rows, in tasks of bounded memory."""
