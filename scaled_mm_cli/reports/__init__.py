"""How `scaled-mm validate` shows its findings.

show.py   their table and picture
html.py   the same as a page, with svg.py and report.css
"""
