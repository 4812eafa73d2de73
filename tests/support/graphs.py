"""What a compiler is given, seen through the tracer: no kernel is written for it."""

from __future__ import annotations

import torch


def traced(function, *inputs, fullgraph=False):
    """What a function answers where it is compiled, and the operations that a compiler is asked for, in words."""
    seen = []

    def look(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    return torch.compile(function, backend=look, fullgraph=fullgraph)(*inputs), seen
