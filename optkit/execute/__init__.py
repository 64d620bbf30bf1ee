"""Where a step runs. A task is JSON in, a folder and a result file out; executors only carry it."""
