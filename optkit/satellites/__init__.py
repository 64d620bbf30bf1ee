"""What commands beside a build do; a build loads none of it."""
