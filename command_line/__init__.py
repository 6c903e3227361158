"""What the command lines of rowcast's programs have in common."""
