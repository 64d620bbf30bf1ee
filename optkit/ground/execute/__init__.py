"""The ways to run a step. A task is JSON; its result is a folder and a JSON file. Executors only
transfer these."""
