"""What can be said about speed before anything runs: pure functions over layers and costs."""
