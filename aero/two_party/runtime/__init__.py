"""Running two parties: processes, links, profiles."""
