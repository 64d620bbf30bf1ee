"""What a build stands on: store, intake, graphs, devices, recipes, data, workers."""
