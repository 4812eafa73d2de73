"""Turn the results of a node that is known to be well into what every node is expected to reach.

python expect.py results/GOOD-NODE.json [LOWER] >> pyproject.toml
"""

import json
import sys
from pathlib import Path

results = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
lower = float(sys.argv[2]) if len(sys.argv) > 2 else -0.05

print("\n[tool.pytest-accel.references]")
for each in results["results"]:
    if each.get("throughput"):
        expected = [float(f"{each['throughput']:.4g}"), lower, "none", f"{each['unit']}/s"]
        print(f"{json.dumps(each['benchmark'])}.{each['platform']} = {json.dumps(expected)}")
