"""The commands of `scaled-mm`, a module for each; scaled_mm_cli/main.py calls them."""
