"""What a backend offers and what it reports: builds, launches, counts, findings and their rules."""
