"""Names of the Kubernetes API that operator, agent, CSI driver and chart agree on; used by all."""

GROUP = "epfabric.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

FABRICS = "epfabrics"
NODES = "epfabricnodes"
GROUPS = "epgroups"

NAMESPACE = "epfabric-system"  # of the operator; Pod Security `restricted`
NODES_NAMESPACE = "epfabric-nodes"  # of agents and CSI driver; Pod Security `privileged`

FABRIC_LABEL = "epfabric.io/fabric"
# What a node's agent found, as labels of the Node; the operator writes them.
TRANSPORT_LABEL = "epfabric.io/transport"
RAILS_LABEL = "epfabric.io/rails"
NIC_LABEL = "epfabric.io/nic"
GPUS_LABEL = "epfabric.io/gpus"
FACT_LABELS = (TRANSPORT_LABEL, RAILS_LABEL, NIC_LABEL, GPUS_LABEL)
FABRIC_ANNOTATION = "epfabric.io/fabric"
GROUP_ANNOTATION = "epfabric.io/group"
# On a Node, by an administrator, with the reason as its value: no new sessions. Never taken away.
CORDON_ANNOTATION = "epfabric.io/cordon"
# On an agent's pod: which template it was made from.
TEMPLATE_LABEL = "epfabric.io/template"
SIGNER = "epfabric.io/agent"
CSI_DRIVER = "csi.epfabric.io"
DRA_DRIVER = "slots.epfabric.io"

OPERATOR_ACCOUNT = "epfabric-operator"
AGENT_ACCOUNT = "epfabric-agent"
CSI_ACCOUNT = "epfabric-csi"
OPERATOR_LEASE = "epfabric-operator"
CA_SECRET = "epfabric-ca"
CA_BUNDLE = "epfabric-ca"
CA_BUNDLE_KEY = "ca.crt"
INJECT_POLICY = "epfabric-inject"
WEBHOOK = "epfabric-webhook"  # its Service, Secret and account

OPERATOR_MANAGER = "epfabric-operator"
OPERATOR_STATUS_MANAGER = "epfabric-operator-status"
AGENT_MANAGER = "epfabric-agent"

STATE_DIR = "/var/lib/epfabric"
KUBELET_ROOT = "/var/lib/kubelet"
POD_RESOURCES = f"{KUBELET_ROOT}/pod-resources/kubelet.sock"  # as an agent sees it
POD_VOLUME = "epfabric"
POD_DIRECTORY = "/var/run/epfabric"
POD_SOCKET = "/var/run/epfabric/agent.sock"

LEASE_SECONDS = 40
LEASE_RENEW_SECONDS = 10
CERTIFICATE_SECONDS = 86400
COMMON_NAME_PREFIX = "epfabric:agent:"

# The API server puts the node of a pod-bound token here, in userInfo.extra and in a CSR's extra.
NODE_NAME_EXTRA = "authentication.kubernetes.io/node-name"


def agent_lease(node: str) -> str:
    """Name of the Lease that the agent of `node` renews."""
    return f"epfabric-agent-{node}"


def agent_daemonset(fabric: str, pool: str | None = None) -> str:
    """Name of the DaemonSet of the fabric's agents, or of one pool of them; a dot is in neither."""
    return f"epfabric-agent-{fabric}" + (f".{pool}" if pool else "")


def policy_binding(fabric: str) -> str:
    """Name of the MutatingAdmissionPolicyBinding of `fabric`."""
    return f"epfabric-inject-{fabric}"


def agent_dns_name(node: str, fabric: str) -> str:
    """DNS name in an agent's certificate; a fabric's name has no dots, so it splits one way."""
    return f"{node}.{fabric}.agents.epfabric.io"
