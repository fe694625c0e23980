"""The table of everything that the dashboard shows; docs/telemetry.md says what the metrics mean.

Queries are PromQL over what Prometheus makes of the agents' and the operator's OTLP metrics.
"""

from __future__ import annotations

from observability.model import Dashboard, Panel, Row, Target, Thresholds, Variable

GROUP = 'k8s_namespace_name=~"$namespace", epfabric_group=~"$group"'
COMPLETED, OTHERS = 'epfabric_result="completed"', 'epfabric_result!="completed"'
RATE = "[$__rate_interval]"
BARRIER = "epfabric_barrier_duration_seconds"
OF_GROUP = "k8s_namespace_name, epfabric_group"
THE_GROUP = "{{k8s_namespace_name}}/{{epfabric_group}}"


def quantile(q: float, by: str, phase: str = "") -> str:
    """Of barriers of the chosen groups, in seconds; nothing where there were none, not NaN."""
    chosen = GROUP + (f', epfabric_phase="{phase}"' if phase else "")
    return f"histogram_quantile({q:g}, sum by ({by}) (rate({BARRIER}{{{chosen}}}{RATE}))) >= 0"


def rate(metric: str, by: str, *more: str) -> str:
    chosen = ", ".join((GROUP, *more))
    return f"sum by ({by}) (rate({metric}{{{chosen}}}{RATE}))"


def in_an_hour(metric: str, by: str) -> str:
    return f"sum by ({by}) (increase({metric}{{{GROUP}}}[1h]))"


BARRIERS = Row(
    "Barriers",
    "agent",
    (
        Panel(
            "Barrier latency by phase, P99",
            "arrive waits for ranks of the node, network for other nodes; total spans all phases.",
            "lines",
            "seconds",
            (Target(quantile(0.99, "epfabric_phase"), "{{epfabric_phase}}"),),
        ),
        Panel(
            "Barrier latency by phase, P50",
            "The usual barrier. P99 far above it in arrive only: some rank is late now and then.",
            "lines",
            "seconds",
            (Target(quantile(0.5, "epfabric_phase"), "{{epfabric_phase}}"),),
        ),
        Panel(
            "Barriers per second",
            "As the group's busiest node counts them.",
            "lines",
            "per-second",
            (
                Target(
                    "max by (k8s_namespace_name, epfabric_group) (histogram_count("
                    f'rate({BARRIER}{{{GROUP}, epfabric_phase="total"}}{RATE})))',
                    THE_GROUP,
                ),
            ),
        ),
        Panel(
            "Straggler: how often a rank came last",
            "One rank far ahead of the others makes the whole group wait.",
            "bars",
            "per-second",
            (
                Target(
                    "topk(5, "
                    + rate("epfabric_barrier_stragglers_total", f"{OF_GROUP}, epfabric_rank")
                    + ")",
                    THE_GROUP + " rank {{epfabric_rank}}",
                ),
            ),
        ),
        Panel(
            "Slowest nodes: waiting for the network, P99",
            "From the node's arrival to the release. High on one node: its NIC or its way.",
            "lines",
            "seconds",
            (Target(f"topk(5, {quantile(0.99, 'instance', 'network')})", "{{instance}}"),),
        ),
        Panel(
            "Slowest nodes: waiting for their own ranks, P99",
            "From the node's first rank to its last. High on one node: a rank there is late.",
            "lines",
            "seconds",
            (Target(f"topk(5, {quantile(0.99, 'instance', 'arrive')})", "{{instance}}"),),
        ),
    ),
)

COMMANDS = Row(
    "Commands",
    "agent",
    (
        Panel(
            "Commands per second by kind",
            "Commands that proxies have completed.",
            "lines",
            "per-second",
            (Target(rate("epfabric_commands_total", "epfabric_op", COMPLETED), "{{epfabric_op}}"),),
        ),
        Panel(
            "Commands per second by node",
            "A node far below the others has slow ranks or slow proxies.",
            "lines",
            "per-second",
            (Target(rate("epfabric_commands_total", "instance", COMPLETED), "{{instance}}"),),
        ),
        Panel(
            "Commands without effect",
            "Refused ones are a bug of the pod's program; masked ones went to lost ranks.",
            "lines",
            "per-second",
            (
                Target(
                    rate("epfabric_commands_total", "epfabric_result, epfabric_reason", OTHERS),
                    "{{epfabric_result}} {{epfabric_reason}}",
                ),
            ),
        ),
        Panel(
            "Operations in flight",
            "Posted and not yet complete, by node.",
            "lines",
            "count",
            (Target(f"sum by (instance) (epfabric_inflight{{{GROUP}}})", "{{instance}}"),),
        ),
        Panel(
            "Fullest rings",
            "Slots taken and not yet retired. Near the FIFO's depth: the network does not keep up.",
            "lines",
            "count",
            (
                Target(
                    f"topk(5, max by ({OF_GROUP}, epfabric_rank) (epfabric_fifo_depth{{{GROUP}}}))",
                    THE_GROUP + " rank {{epfabric_rank}}",
                ),
            ),
        ),
        Panel(
            "WRITEs joined",
            "They went in the network write of the one before, by node (spec.lowLatency.packing).",
            "lines",
            "per-second",
            (Target(rate("epfabric_joined_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Connections mended in an hour",
            "They broke and were made anew, by node. One node far ahead: its NIC, cable or port.",
            "lines",
            "count",
            (Target(in_an_hour("epfabric_mended_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Operations sent again",
            "What was under way on connections that broke.",
            "lines",
            "per-second",
            (Target(rate("epfabric_replayed_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Payload by node and peer",
            "What ranks of a node write to ranks of another, its own included.",
            "lines",
            "bytes-per-second",
            (
                Target(
                    rate("epfabric_bytes_total", "instance, epfabric_peer"),
                    "{{instance}} to {{epfabric_peer}}",
                ),
            ),
        ),
    ),
)

AGENTS = Row(
    "Agents and groups",
    "agent",
    (
        Panel(
            "Agents up",
            "Agents that have reported within five minutes.",
            "number",
            "count",
            (Target("count(epfabric_sessions)", "agents"),),
            width=4,
        ),
        Panel(
            "Sessions",
            "Ranks that are attached.",
            "number",
            "count",
            (Target("sum(epfabric_sessions)", "sessions"),),
            width=4,
        ),
        Panel(
            "Groups",
            "Groups with a session anywhere.",
            "number",
            "count",
            (
                Target(
                    "count(count by (k8s_namespace_name, epfabric_group) "
                    "(epfabric_group_sessions))",
                    "groups",
                ),
            ),
            width=4,
        ),
        Panel(
            "Masked ranks",
            "Lost ranks that groups go on without.",
            "number",
            "count",
            (Target(f"sum(epfabric_group_masked{{{GROUP}}})", "ranks"),),
            width=4,
            thresholds=Thresholds(1, 8),
        ),
        Panel(
            "Failed epochs in an hour",
            "A lost rank or agent, a barrier's time-out, or ranks that did not come.",
            "number",
            "count",
            (
                Target(
                    "sum(increase(epfabric_group_epochs_total"
                    f'{{{GROUP}, epfabric_result="failed"}}[1h]))',
                    "epochs",
                ),
            ),
            width=4,
            thresholds=Thresholds(1, 10),
        ),
        Panel(
            "First certificate to end",
            "Agents renew theirs at half its life; less than a quarter left means they cannot.",
            "number",
            "seconds",
            (Target("min(epfabric_certificate_left_seconds)", "left"),),
            width=4,
            thresholds=Thresholds(6 * 3600, 3600, falling=True),
        ),
        Panel(
            "Epochs by group",
            "In an hour; one whose coordinator was lost is orphaned on each other node.",
            "table",
            "count",
            (
                Target(
                    in_an_hour("epfabric_group_epochs_total", f"{OF_GROUP}, epfabric_result"),
                    THE_GROUP + " {{epfabric_result}}",
                ),
            ),
        ),
        Panel(
            "Refused requests of pods in an hour",
            "By the code that the pod got; docs/operations.md says what to do.",
            "table",
            "count",
            (
                Target(
                    in_an_hour("epfabric_session_refusals_total", f"{OF_GROUP}, epfabric_reason"),
                    THE_GROUP + " {{epfabric_reason}}",
                ),
            ),
        ),
        Panel(
            "Transports in use",
            "How many agents chose which; tcp is for trials.",
            "table",
            "count",
            (
                Target(
                    "count by (epfabric_transport, epfabric_provider) (epfabric_transport_info)",
                    "{{epfabric_transport}} {{epfabric_provider}}",
                ),
            ),
        ),
    ),
)

OPERATOR = Row(
    "Operator",
    "operator",
    (
        Panel(
            "Leaders",
            "One of the operator's processes leads; 0 means that changes wait.",
            "number",
            "count",
            (Target("sum(epfabric_operator_leading)", "leaders"),),
            width=4,
            thresholds=Thresholds(1, 1, falling=True),
        ),
        Panel(
            "Since the cluster was last read",
            "Grows while the API server does not answer.",
            "number",
            "seconds",
            (Target("min(epfabric_operator_success_age_seconds)", "age"),),
            width=4,
            thresholds=Thresholds(60, 300),
        ),
        Panel(
            "Fabrics",
            "By whether they are Ready.",
            "lines",
            "count",
            (
                Target(
                    "sum by (epfabric_ready) (epfabric_operator_fabrics)",
                    "ready {{epfabric_ready}}",
                ),
            ),
        ),
        Panel(
            "Nodes by state",
            "failing: the agent is missing, silent or without transport; `kubectl get epfn`.",
            "lines",
            "count",
            (
                Target(
                    "sum by (epfabric_fabric, epfabric_state) (epfabric_operator_nodes)",
                    "{{epfabric_fabric}} {{epfabric_state}}",
                ),
            ),
        ),
        Panel(
            "Looks per second",
            "How often an object was looked at, by how that ended; a fault is in the log.",
            "lines",
            "per-second",
            (
                Target(
                    "sum by (epfabric_kind, epfabric_result) "
                    f"(rate(epfabric_operator_reconciles_total{RATE}))",
                    "{{epfabric_kind}} {{epfabric_result}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "How long a look takes, P99",
            "Mostly the API server's answers.",
            "lines",
            "seconds",
            (
                Target(
                    "histogram_quantile(0.99, sum by (epfabric_kind) "
                    f"(rate(epfabric_operator_reconcile_duration_seconds{RATE}))) >= 0",
                    "{{epfabric_kind}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Objects that wait",
            "To be looked at, later tries among them.",
            "lines",
            "count",
            (Target("sum by (instance) (epfabric_operator_queue)", "{{instance}}"),),
            width=6,
        ),
        Panel(
            "Certificate requests in an hour",
            "Signed, or refused with a reason.",
            "lines",
            "count",
            (
                Target(
                    "sum by (epfabric_result, epfabric_reason) "
                    "(increase(epfabric_operator_certificates_total[1h]))",
                    "{{epfabric_result}} {{epfabric_reason}}",
                ),
            ),
            width=6,
        ),
    ),
)

FABRIC = Dashboard(
    "epfabric",
    "EPFabric",
    "Barriers, commands, agents and operator of EPFabric; docs/operations.md says what to do.",
    (
        Variable("namespace", "Namespace", "epfabric_group_sessions", "k8s_namespace_name"),
        Variable("group", "Group", "epfabric_group_sessions", "epfabric_group"),
    ),
    (BARRIERS, COMMANDS, AGENTS, OPERATOR),
)
