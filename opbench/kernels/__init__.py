"""What there is: operators, headers, variants, cases and their launches, as data."""
