"""What the chart's hooks run in the operator's image: definitions, removal, `helm test`."""
