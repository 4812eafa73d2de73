"""From measurements to verdicts, and from verdicts to pytest's reports."""
