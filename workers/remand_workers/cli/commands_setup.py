"""Commands that set up."""
COMMANDS = []
