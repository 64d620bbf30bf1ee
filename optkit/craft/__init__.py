"""The stages of a build; none imports another."""
