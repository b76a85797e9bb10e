"""The pieces of the page: its HTML, style and scripts."""
