"""The order of a build: its steps, its jobs, and the forms in which it leaves."""
