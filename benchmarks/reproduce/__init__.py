"""The published tables, run again: definitions, finished cells and what prints them beside the published figures."""
