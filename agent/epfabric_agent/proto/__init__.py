"""Generated from `agent/proto`; used by the CSI driver and by the agents among themselves."""
