"""`kubectl epfabric doctor`: facts.py reads, one pure file a family finds, command.py prints."""
