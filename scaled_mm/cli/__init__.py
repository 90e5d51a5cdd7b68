"""The commands of `scaled-mm`, a module for each; scaled_mm_cli/main.py calls them."""

from scaled_mm_cli.main import COMMANDS, app, main

__all__ = ["COMMANDS", "app", "main"]
