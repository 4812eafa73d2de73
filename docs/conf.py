"""Sphinx: the pages of docs/ and those that they link to. The source folder is the repository, as on a code host."""

# ruff: noqa: INP001 - Sphinx loads it by its path

project = "pytest-accel"
html_title = project
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**", "examples/README.md", "examples/*/README.md"]
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 3  # named as code hosts name them
html_theme = "furo"
html_favicon = "assets/favicon.svg"
html_extra_path = ["assets/index.html"]
html_copy_source = False
html_use_index = False
copybutton_prompt_text = "$ "
copybutton_copy_empty_lines = False
