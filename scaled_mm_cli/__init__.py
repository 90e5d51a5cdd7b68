"""The `scaled-mm` command, on top of the library.

main.py       the table of commands, the exit codes, and what becomes of an error
options/      the options of each command
words.py      names and numbers of the library that help texts mention
terminal.py   what may reach the terminal
commands/     what each command does; reports/ how `validate` shows its findings

Only the last two import the library, which loads torch and takes seconds; no help text does.
"""
