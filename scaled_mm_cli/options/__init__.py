"""The options of each command, a module for each: a help text needs no more of the command."""
