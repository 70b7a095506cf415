"""What the bench's own tools are checked for (`make -C bench check`)."""
