"""EPFabric's Kubernetes API: names, CRDs and their typed mirror; used by operator and agent."""

from epfabric_crds.convert import MirrorError, from_dict, to_dict
from epfabric_crds.fabric import EPFabric, EPFabricSpec, EPFabricStatus
from epfabric_crds.group import EPGroup, EPGroupSpec, EPGroupStatus
from epfabric_crds.meta import Condition, ObjectMeta
from epfabric_crds.node import EPFabricNode, EPFabricNodeSpec, EPFabricNodeStatus
from epfabric_crds.selector import LabelSelector
from epfabric_crds.settings import Settings

__all__ = [
    "Condition",
    "EPFabric",
    "EPFabricNode",
    "EPFabricNodeSpec",
    "EPFabricNodeStatus",
    "EPFabricSpec",
    "EPFabricStatus",
    "EPGroup",
    "EPGroupSpec",
    "EPGroupStatus",
    "LabelSelector",
    "MirrorError",
    "ObjectMeta",
    "Settings",
    "from_dict",
    "to_dict",
]
