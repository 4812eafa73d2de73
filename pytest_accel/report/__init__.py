"""Text for users: the table of verdicts, terminal, Markdown, HTML page, GitHub, comparisons."""
