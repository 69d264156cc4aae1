"""What is made of a comparison's document: answers, changes since another one, tables, plots, a page,
files."""
