"""Binding, checking, judging and timing of cases on one device."""
