"""DeepEP's interface: names, order and defaults of arguments; Buffer's as version 1.2 documents it,
ElasticBuffer's as version 2 does."""

from __future__ import annotations

REQUIRED = "required"
_LAYOUT = {
    "num_tokens_per_rank": None,
    "num_tokens_per_rdma_rank": None,
    "is_token_in_rank": None,
    "num_tokens_per_expert": None,
    "topk_idx": None,
    "topk_weights": None,
}
_EVENTS = {"previous_event": None, "async_finish": False, "allocate_on_comm_stream": False}
_SHAPE = {"num_max_dispatch_tokens_per_rank": REQUIRED, "hidden": REQUIRED}
_COMBINE = {"x": REQUIRED, "handle": REQUIRED, "topk_weights": None, "bias": None, "config": None}

BUFFER: dict[str, dict[str, object]] = {
    "__init__": {
        "group": REQUIRED,
        "num_nvl_bytes": 0,
        "num_rdma_bytes": 0,
        "low_latency_mode": False,
        "num_qps_per_rank": 24,
        "allow_nvlink_for_low_latency_mode": True,
        "allow_mnnvl": False,
        "explicitly_destroy": False,
        "enable_shrink": False,
        "comm": None,
    },
    "destroy": {},
    "get_comm_stream": {},
    "get_local_buffer_tensor": {
        "dtype": REQUIRED,
        "size": None,
        "offset": 0,
        "use_rdma_buffer": False,
    },
    "get_dispatch_layout": {"topk_idx": REQUIRED, "num_experts": REQUIRED, **_EVENTS},
    "dispatch": {
        "x": REQUIRED,
        "handle": None,
        **_LAYOUT,
        "expert_alignment": 1,
        "num_worst_tokens": 0,
        "config": None,
        **_EVENTS,
    },
    "combine": {**_COMBINE, **_EVENTS},
    "internode_dispatch": {
        "x": REQUIRED,
        "handle": None,
        **_LAYOUT,
        "expert_alignment": 1,
        "config": None,
        **_EVENTS,
    },
    "internode_combine": {**_COMBINE, **_EVENTS},
    "clean_low_latency_buffer": {**_SHAPE, "num_experts": REQUIRED},
    "low_latency_dispatch": {
        "x": REQUIRED,
        "topk_idx": REQUIRED,
        "num_max_dispatch_tokens_per_rank": REQUIRED,
        "num_experts": REQUIRED,
        "cumulative_local_expert_recv_stats": None,
        "dispatch_wait_recv_cost_stats": None,
        "use_fp8": True,
        "round_scale": False,
        "use_ue8m0": False,
        "async_finish": False,
        "return_recv_hook": False,
    },
    "low_latency_combine": {
        "x": REQUIRED,
        "topk_idx": REQUIRED,
        "topk_weights": REQUIRED,
        "handle": REQUIRED,
        "use_logfmt": False,
        "zero_copy": False,
        "async_finish": False,
        "return_recv_hook": False,
        "out": None,
        "combine_wait_recv_cost_stats": None,
    },
    "low_latency_update_mask_buffer": {"rank_to_mask": REQUIRED, "mask": False},
    "low_latency_query_mask_buffer": {"mask_status": REQUIRED},
    "low_latency_clean_mask_buffer": {},
    "get_next_low_latency_combine_buffer": {"handle": REQUIRED},
}

BUFFER_STATIC: dict[str, dict[str, object]] = {
    "is_sm90_compiled": {},
    "set_num_sms": {"new_num_sms": REQUIRED},
    "capture": {},
    "get_low_latency_rdma_size_hint": {**_SHAPE, "num_ranks": REQUIRED, "num_experts": REQUIRED},
    "get_dispatch_config": {"num_ranks": REQUIRED},
    "get_combine_config": {"num_ranks": REQUIRED},
}

CONFIG: dict[str, dict[str, object]] = {
    "__init__": {
        "num_sms": 20,
        "num_max_nvl_chunked_send_tokens": 6,
        "num_max_nvl_chunked_recv_tokens": 256,
        "num_max_rdma_chunked_send_tokens": 6,
        "num_max_rdma_chunked_recv_tokens": 256,
    },
    "get_nvl_buffer_size_hint": {"hidden_bytes": REQUIRED, "num_ranks": REQUIRED},
    "get_rdma_buffer_size_hint": {"hidden_bytes": REQUIRED, "num_ranks": REQUIRED},
}

EVENT_OVERLAP: dict[str, dict[str, object]] = {
    "__init__": {"event": None, "extra_tensors": None},
    "current_stream_wait": {"release_handle": False},
    "wait": {},
    "register_hook_after_wait": {"hook_after_wait": REQUIRED},
    "__enter__": {},
}

_SIZES = {"num_max_tokens_per_rank": REQUIRED, "hidden": REQUIRED}
_REDUCTION = {"allow_hybrid_mode": True, "allow_multiple_reduction": True}
_ASYNC = {
    "previous_event": None,
    "previous_event_before_epilogue": None,
    "async_with_compute_stream": False,
    "allocate_on_comm_stream": False,
}

ELASTIC: dict[str, dict[str, object]] = {
    "__init__": {
        "group": REQUIRED,
        "num_bytes": None,
        "num_cpu_bytes": 0,
        "num_max_tokens_per_rank": 0,
        "hidden": 0,
        "num_topk": 0,
        "use_fp8_dispatch": False,
        "deterministic": False,
        **_REDUCTION,
        "prefer_overlap_with_compute": True,
        "sl_idx": 3,
        "num_allocated_qps": 0,
        "num_cpu_timeout_secs": 300,
        "num_gpu_timeout_secs": 100,
        "explicitly_destroy": False,
    },
    "destroy": {},
    "barrier": {"use_comm_stream": True, "with_cpu_sync": False, "sequential": True},
    "get_comm_stream": {},
    "get_physical_domain_size": {},
    "get_logical_domain_size": {},
    "get_theoretical_num_sms": {
        "num_experts": REQUIRED,
        "num_topk": REQUIRED,
        "num_scaleout_topk": 0,
        "rdma_gbs": 0,
        "nvlink_gbs": 0,
        "sm_read_gbs": 200,
        "sm_write_gbs": 50,
    },
    "get_theoretical_num_qps": {"num_sms": REQUIRED},
    "dispatch": {
        "x": REQUIRED,
        "topk_idx": None,
        "topk_weights": None,
        "cumulative_local_expert_recv_stats": None,
        "num_experts": None,
        "num_max_tokens_per_rank": None,
        "expert_alignment": None,
        "num_sms": 0,
        "num_qps": 0,
        **_ASYNC,
        "handle": None,
        "do_handle_copy": True,
        "do_cpu_sync": None,
        "do_expand": False,
        "do_zero_padding": False,
        "use_tma_aligned_col_major_sf": False,
    },
    "combine": {
        "x": REQUIRED,
        "handle": REQUIRED,
        "topk_weights": None,
        "bias": None,
        "num_sms": 0,
        "num_qps": 0,
        **_ASYNC,
    },
}

ELASTIC_STATIC: dict[str, dict[str, object]] = {
    "get_buffer_size_hint": {
        "group": REQUIRED,
        **_SIZES,
        "num_topk": 0,
        "use_fp8_dispatch": False,
        **_REDUCTION,
    },
    "capture": {},
}

ELASTIC_HANDLE = [
    "do_expand",
    "num_experts",
    "expert_alignment",
    "num_max_tokens_per_rank",
    "num_sms",
    "topk_idx",
    "num_recv_tokens",
    "num_expanded_tokens",
    "num_recv_tokens_per_expert_list",
    "psum_num_recv_tokens_per_scaleup_rank",
    "psum_num_recv_tokens_per_expert",
    "num_unaligned_recv_tokens_per_expert",
    "recv_src_metadata",
    "token_metadata_at_forward",
    "channel_linked_list",
]
