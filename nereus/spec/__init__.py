"""What a person declares. The only room that parses."""
