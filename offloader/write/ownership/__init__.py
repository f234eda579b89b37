"""Who writes a stream: opening it, finding what an earlier owner left, taking it over."""
