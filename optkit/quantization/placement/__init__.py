"""Which nodes get which precision, and where Q/DQ pairs go. Changes nothing."""
