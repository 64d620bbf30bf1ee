"""The generated pages of docs/reference: one module each, with a function `page`."""
