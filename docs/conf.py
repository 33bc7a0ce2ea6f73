"""Sphinx settings of the site that `make docs` builds from a copy of this repository."""

project = "How should I train in parallel here?"
copyright = "The ddl authors"
extensions = ["myst_nb"]
root_doc = "README"
exclude_patterns = ["tests/*/golden"]  # texts that tests compare

html_theme = "furo"
html_title = "ddl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
# It would fetch pages, which a browser refuses for local files.
html_show_search_summary = False
html_show_sphinx = False

# Papermill has executed the notebooks.
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
suppress_warnings = ["mystnb.unknown_mime_type"]
