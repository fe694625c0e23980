"""The dashboards of the chart: one table, and what makes Grafana's and Perses' files of it.

`PYTHONPATH=charts .venv/bin/python -m observability` writes the files that the chart ships.
"""
