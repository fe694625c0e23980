"""EPFabric's operator: turns EPFabric resources into labelled nodes, agents and status."""
