"""A discrete-event model of a real run: same requests, same capacity, the product's own report arithmetic."""
