"""One segment: from entries to blocks, parts, objects and the record that makes it count."""
