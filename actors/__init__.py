"""Thin Ray shells around the rooms of nereus."""
