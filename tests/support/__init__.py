"""Helpers of the tests by kind: `fakes` stand in, `builders` make inputs, `checks` judge outputs."""
