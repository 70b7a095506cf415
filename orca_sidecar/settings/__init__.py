"""The configuration file: its schema, what must hold in it, and how it is read."""
