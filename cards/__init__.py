"""Model cards: schema, template, plots, and every published card as a file."""
