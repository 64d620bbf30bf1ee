"""Which nodes get which precision, and where Q/DQ pairs go. Nothing here changes the graph."""
