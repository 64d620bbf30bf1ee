"""What is told of a build: findings, and reports as text, page, JSON and JUnit."""
