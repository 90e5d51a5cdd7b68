"""The `scaled-mm` command as far as it needs no torch, which takes seconds to import.

main.py       the table of commands, the exit codes, and what becomes of an error
options/      the options of each command
words.py      names and numbers of the library that help texts mention
terminal.py   what may reach the terminal

A package of its own because `import scaled_mm.anything` runs `scaled_mm/__init__.py`, which loads
torch and the kernels. What the commands do is in `scaled_mm/cli/`, a module for each.
"""
