"""Where a user enters: commands, functions of Python, hooks of trainers, tools of agents."""
