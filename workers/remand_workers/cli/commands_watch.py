"""Commands for people who watch."""
COMMANDS = []
