#!/usr/bin/env python3
"""Step times beside JAX on the CPU, as a table of ratios.

    cargo build --release
    python3 -m venv target/peer && target/peer/bin/pip install "jax[cpu]" safetensors
    python3 benches/peer.py [--rounds 5] [--peer ../shared/peer/peer_jax.py]

Each row runs both programs alternately, so that both see the same machine; the ratio is of medians
over rounds of each run's median step (forward, backward, AdamW; the first two steps left out). On a
shared machine only ratios mean something. Below 1: autoshard is faster.
"""
import argparse, json, os, statistics, subprocess

ROWS = [  # configuration, batch, sequence, mesh of autoshard, mesh of the peer
    ("tiny", 8, 64, "dp=1", ""),
    ("small", 8, 256, "dp=1", ""),
    ("small", 8, 256, "dp=8", "dp8"),
    ("small", 8, 256, "fsdp=8", "fsdp8"),
    ("small", 8, 256, "tp=4,dp=2", "tp4,dp2"),
    ("mid", 4, 512, "dp=1", ""),
]


def last_json(command):
    # OPENBLAS_CORETYPE slows a current numpy; neither program needs it.
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    out = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    line = json.loads(out.strip().splitlines()[-1])
    return line.get("summary", line)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--peer", default="../shared/peer/peer_jax.py")
    ap.add_argument("--only", default="", help="rows whose configuration has this name")
    args = ap.parse_args()
    print("| model | batch×seq | mesh | autoshard, ms | JAX, ms | ratio of steps | ratio of CPU time |\n|---|---|---|---|---|---|---|")
    for name, batch, seq, mesh, peer_mesh in ROWS:
        if args.only and args.only != name:
            continue
        config = f"tests/data/configs/peer_{name}.json"
        size = ["--batch", str(batch)]
        ours = ["target/release/autoshard", "run", config, "--mesh", mesh, "--seq-len", str(seq), "--data", "golden",
                "--steps", "9", "--json"] + size
        theirs = ["target/peer/bin/python", args.peer, "--bench", "--json", "--config", config, "--seq", str(seq)] + size
        theirs += ["--mesh", peer_mesh] if peer_mesh else []
        a, b = [], []
        for i in range(args.rounds):
            for side, command in [(a, ours), (b, theirs)][:: 1 if i % 2 == 0 else -1]:
                side.append(last_json(command))
        med = lambda runs, key: statistics.median(r[key] for r in runs)
        step, cpu = "step_median_s", "cpu_median_s"
        ratio = statistics.median(x[step] / y[step] for x, y in zip(a, b))
        ratio_cpu = statistics.median(x[cpu] / y[cpu] for x, y in zip(a, b))
        print(f"| {name} | {batch}×{seq} | {mesh} | {1e3 * med(a, step):.1f} | {1e3 * med(b, step):.1f} "
              f"| {ratio:.2f} | {ratio_cpu:.2f} |", flush=True)


main()
